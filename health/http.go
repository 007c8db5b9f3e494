package health

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"
)

// page serves the checks of a group under /livez or /readyz, and each check alone under /livez/<name>.
//
// It uses the format of kube-apiserver and etcd: 200 and "ok", or 503 and a line for each check. With ?verbose the
// response always has a line for each check, with its last changes. ?exclude=<name> leaves a check out, and can be
// repeated. Only callers on this host see reasons.
type page struct {
	registry *Registry
	group    Group
}

// Page serves a group at an additional path.
func Page(r *Registry, group Group) http.Handler { return page{r, group} }

// ServeHTTP implements http.Handler.
func (p page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, fmt.Sprintf("method %s: must be GET or HEAD", r.Method), http.StatusMethodNotAllowed)
		return
	}
	query, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		http.Error(w, fmt.Sprintf("query: %v", err), http.StatusBadRequest)
		return
	}
	checks := p.registry.of(p.group)
	if name := r.PathValue("name"); name != "" {
		found := slices.IndexFunc(checks, func(c *check) bool { return c.Name == name })
		if found < 0 {
			http.Error(w, fmt.Sprintf("%s has no check %q, only %s", p.group, name, listed(checks)), http.StatusNotFound)
			return
		}
		checks = checks[found : found+1]
	}
	selected := selectChecks(checks, query["exclude"])
	if len(checks) > 0 && len(selected.run) == 0 || slices.ContainsFunc(checks, counts) &&
		!slices.ContainsFunc(selected.run, counts) {
		http.Error(w, "exclude: must leave at least one check of "+listed(checks), http.StatusBadRequest)
		return
	}
	report := report{verbose: query.Has("verbose"), reasons: p.registry.FromThisHost(r), status: http.StatusOK}
	for _, name := range selected.unknown {
		fmt.Fprintf(&report.head, "warning: exclude: unknown check %q\n", name)
	}
	results := resultsOf(r.Context(), selected.run)
	for _, c := range checks {
		if i := slices.IndexFunc(results, func(r Result) bool { return r.Name == c.Name }); i >= 0 {
			report.add(&results[i])
		} else {
			fmt.Fprintf(&report.lines, "[+]%s excluded: ok\n", c.Name)
		}
	}
	report.write(w)
}

// counts reports whether a check can fail its group.
func counts(c *check) bool { return !c.Informational }

// listed joins the names of checks.
func listed(checks []*check) string {
	names := make([]string, len(checks))
	for i, c := range checks {
		names[i] = c.Name
	}
	return "[" + strings.Join(names, " ") + "]"
}

// selection is the checks left after exclusion.
type selection struct {
	run     []*check
	unknown []string
}

func selectChecks(checks []*check, exclude []string) selection {
	s := selection{run: checks}
	for _, name := range exclude {
		named := func(c *check) bool { return c.Name == name }
		if !slices.ContainsFunc(checks, named) {
			s.unknown = append(s.unknown, name)
			continue
		}
		s.run = slices.DeleteFunc(slices.Clone(s.run), named)
	}
	return s
}

// ofProxies are headers set by proxies, in canonical form, besides X-Forwarded-*.
var ofProxies = []string{"Forwarded", "Via", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip",
	"X-Envoy-External-Address"}

// FromThisHost reports whether a caller may see reasons, which may contain addresses and names. A proxied request does
// not count as local.
func (r *Registry) FromThisHost(caller *http.Request) bool {
	for header := range caller.Header {
		if slices.Contains(ofProxies, header) || strings.HasPrefix(header, "X-Forwarded-") {
			return false
		}
	}
	host, _, err := net.SplitHostPort(caller.RemoteAddr)
	ip := net.ParseIP(host)
	return err == nil && ip != nil && (ip.IsLoopback() || r.ownAddress(caller))
}

// report is the body of a response.
type report struct {
	verbose, reasons bool
	status           int
	head, lines      strings.Builder
}

func (o *report) add(r *Result) {
	if r.Failed() {
		o.status = http.StatusServiceUnavailable
	}
	o.line("", r, r.Err)
	if !o.verbose {
		return
	}
	for _, c := range r.Changes {
		o.line("    "+c.At.UTC().Format(time.RFC3339)+" ", r, c.Err)
	}
}

// line writes a current or past result of a check.
func (o *report) line(indent string, r *Result, err error) {
	if err == nil {
		fmt.Fprintf(&o.lines, "%s[+]%s ok\n", indent, r.Name)
		return
	}
	sign, verdict, reason := "[-]", "failed", "reason withheld"
	if r.Informational {
		sign, verdict = "[!]", "warning"
	}
	if o.reasons {
		reason = strings.ReplaceAll(err.Error(), "\n", "; ")
	}
	fmt.Fprintf(&o.lines, "%s%s%s %s: %s\n", indent, sign, r.Name, verdict, reason)
}

func (o *report) write(w http.ResponseWriter) {
	if o.verbose || o.status != http.StatusOK {
		o.head.WriteString(o.lines.String())
	}
	if o.status == http.StatusOK {
		o.head.WriteString("ok\n")
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(o.status)
	_, _ = w.Write([]byte(o.head.String())) // fails if the caller has disconnected
}
