package fidelity_test

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// eventClass is a form of the kubelet's events without a mesh, and its form through the mesh. Words in capitals are
// placeholders from eventWords.
type eventClass struct {
	// what is the subject of the event, for the table.
	what   string
	direct string
	// other says that only kubelets of other versions than the one in the tests write the event.
	other bool
	// through and perPort are the event through the mesh; "" if it is the same as without a mesh.
	through, perPort string
}

const (
	status503     = "probe failed: HTTP probe failed with statuscode: 503"
	unexpectedEOF = "probe errored and resulted in failure state: unexpected EOF"
)

// eventClasses are all classes of events in the cases. The first that matches is used.
var eventClasses = []eventClass{
	{what: "Success", direct: "no event"},
	{what: "Warning: a redirect that is not followed", direct: "probe warning: Probe terminated redirects, Response body: TEXT"},
	{what: "HTTP, a status from 400 to 999, or 101", direct: "probe failed: HTTP probe failed with statuscode: STATUS"},
	{what: "HTTP, any other status", direct: "probe failed: HTTP probe failed with statuscode: NUMBER", through: status503, perPort: status503},
	{what: "HTTP, no valid answer: refused, timeout, no TLS …", direct: `probe failed: Get "URL": TEXT`, through: status503, perPort: status503},
	{what: "HTTP, a truncated body", direct: unexpectedEOF},
	{what: "HTTP, a body that cannot be read: timeout, reset, invalid chunk …", direct: "probe errored and resulted in failure state: TEXT",
		through: unexpectedEOF, perPort: unexpectedEOF},
	{what: "TCP, refused or timed out", direct: "probe failed: dial tcp IP:PORT: TEXT", through: status503},
	{what: "TCP, a probe with `host`, which is not rewritten", direct: "probe failed: dial TEXT"},
	{what: "gRPC, not serving", direct: `probe failed: service unhealthy (responded with "TEXT")`, through: status503},
	{what: "gRPC, no connection in time", direct: `probe failed: timeout: failed to connect service "IP:PORT" within TIME: context deadline exceeded`,
		through: status503, perPort: "probe failed: timeout: health rpc did not complete within TIME"},
	{what: "gRPC, no answer in time", direct: "probe failed: timeout: health rpc did not complete within TIME", through: status503},
	{what: "gRPC, no health checks", direct: "probe failed: error: this server does not implement the grpc health protocol (grpc.health.v1.Health): TEXT",
		through: status503, perPort: "probe failed: error: this server does not implement the grpc health protocol (grpc.health.v1.Health): "},
	{what: "gRPC, any other error", direct: "probe failed: error: health rpc probe failed: rpc error: code = CODE desc = TEXT",
		through: status503, perPort: "probe failed: error: health rpc probe failed: rpc error: code = CODE desc = "},
	{what: "gRPC, an answer without a message, kubelets up to 1.35", direct: "probe failed: error: health rpc probe failed: EOF", other: true,
		through: status503, perPort: "probe failed: error: health rpc probe failed: rpc error: code = Internal desc = "},
	{what: "gRPC, refused, kubelets of 1.38", other: true, through: status503,
		direct: `probe failed: error: failed to connect service at "IP:PORT": connection error: desc = "transport: Error while dialing: TEXT: connection refused"`},
	{what: "gRPC, `UNAVAILABLE` or a broken connection, kubelets of 1.38", other: true, through: status503,
		direct: `probe failed: error: failed to connect service at "IP:PORT": TEXT`, perPort: `probe failed: error: failed to connect service at "IP:PORT": `},
	{what: "a hook that fails", direct: "HOOK failed"},
	{what: "an HTTPS hook to an HTTP port", direct: "LifecycleHTTPFallback request to HTTPS lifecycle hook IP:PORT got HTTP response, retry with HTTP succeeded",
		through: "no event", perPort: "no event"},
	{what: "a probe that the kubelet cannot run, which is not rewritten", direct: "probe errored and resulted in unknown state: TEXT"},
}

// eventWords are the patterns of the placeholders in an eventClass.
var eventWords = map[string]string{
	"URL": `[^"]*`, "TEXT": `(?s:.*)`, "NUMBER": `-?\d+`, "STATUS": `(?:[4-9]\d\d|101)`, "TIME": `\d+s`, "CODE": `\w+(?:\(\d+\))?`,
	"HOOK": `(?:PostStart|PreStop)Hook`,
}

var eventWord = regexp.MustCompile(`URL|TEXT|NUMBER|STATUS|TIME|CODE|HOOK`)

// pattern matches events of a form. Each placeholder is a group.
func pattern(form string) *regexp.Regexp {
	return regexp.MustCompile("^" + eventWord.ReplaceAllStringFunc(regexp.QuoteMeta(form), func(word string) string {
		return "(?P<" + word + ">" + eventWords[word] + ")"
	}) + "$")
}

// expect returns the expected text in the given form of an event of the class, or "" if the event is of another class.
func (c *eventClass) expect(direct, form string) string {
	p := pattern(c.direct)
	groups := p.FindStringSubmatch(direct)
	switch {
	case groups == nil:
		return ""
	case form == "":
		return direct
	}
	return eventWord.ReplaceAllStringFunc(form, func(word string) string { return groups[p.SubexpIndex(word)] })
}

var eventBegins = regexp.MustCompile(`^Warning (?:(?:Unhealthy|ProbeWarning) (?:Liveness|Readiness|Startup) |(?:FailedPostStartHook|FailedPreStopHook) )?`)

// normalise returns an event without its kind, and with placeholders for the pod's address and port.
func normalise(event, ip string) string {
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	event = regexp.MustCompile(regexp.QuoteMeta(ip)+`:\d+`).ReplaceAllLiteralString(event, "IP:PORT")
	return eventBegins.ReplaceAllString(event, "")
}

// rpcCode is the code of an answer that is not gRPC: libraries of kubelets until 1.35 use another code than the agent's
// library.
var rpcCode = regexp.MustCompile(`code = (?:Internal|Unknown) `)

// judgeEvents compares the events of a kubelet of a minor version with eventClasses.
func (r *result) judgeEvents(c *cases.Case, minor int) {
	if minor <= 35 {
		for _, o := range []*outcome{r.direct, r.through, r.perPort} {
			for i := range o.events {
				o.events[i] = rpcCode.ReplaceAllLiteralString(o.events[i], "code = Internal ")
			}
		}
	}
	for i, direct := range r.direct.events {
		if i >= len(r.through.events) || i >= len(r.perPort.events) {
			return // the verdicts also differ
		}
		at := slices.IndexFunc(eventClasses, func(class eventClass) bool { return class.expect(direct, "") != "" })
		if at < 0 {
			r.wrong = append(r.wrong, fmt.Sprintf("event %q matches no class of eventClasses", direct))
			continue
		}
		r.classes = append(r.classes, at)
		class := &eventClasses[at]
		through, perPort := class.through, class.perPort
		if c.Unchanged {
			through, perPort = "", ""
		}
		if want := class.expect(direct, through); r.through.events[i] != want {
			r.wrong = append(r.wrong, fmt.Sprintf("event through the mesh: %q, want %q\nwithout a mesh: %q", r.through.events[i], want, direct))
		}
		if want := class.expect(direct, perPort); r.perPort.events[i] != want {
			r.wrong = append(r.wrong, fmt.Sprintf("event in per-port mode: %q, want %q\nwithout a mesh: %q", r.perPort.events[i], want, direct))
		}
	}
}

// eventTable returns the table of events in results.md.
func eventTable() string {
	var b strings.Builder
	b.WriteString("| the event is about | without a mesh | through the mesh | per-port mode |\n|---|---|---|---|\n")
	for _, class := range eventClasses {
		fmt.Fprintf(&b, "| %s | %s | %s | %s |\n", class.what, eventCell(class.direct), eventCell(class.through), eventCell(class.perPort))
	}
	return b.String()
}

func eventCell(event string) string {
	if event == "" {
		return "the same"
	}
	return "`" + strings.TrimPrefix(event, "probe ") + "`"
}
