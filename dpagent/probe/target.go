package probe

import (
	"context"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Target is what a port or path of a written Dataplane probes.
type Target struct {
	// Asked is the address that the kubelet would have probed without the mesh. Application is the address where the
	// application behind it listens.
	Asked, Application netip.AddrPort
	// Path is the path of the HTTP request. It begins with a slash.
	Path string
}

// url returns the URL that the kubelet would have requested.
func (t *Target) url(query string) *url.URL {
	u, err := url.Parse("http://" + t.Asked.String() + t.Path)
	if err != nil { // like the kubelet, take it as a plain path
		u = &url.URL{Scheme: "http", Host: t.Asked.String(), Path: t.Path}
	}
	u.RawQuery = query
	return u
}

// serveTarget answers one request. The check runs for as long as its caller waits. The application gets the query of
// the caller's request and a kubelet's user agent, but no other header, since some frameworks read method and path from
// headers.
func (h *Handler) serveTarget(w http.ResponseWriter, r *http.Request) {
	path, _, _ := strings.Cut(r.RequestURI, "?")
	t, ok := h.o.Target(path)
	if !ok || r.Method != http.MethodGet {
		notFound(w)
		return
	}
	unlimited(r.Context())
	e := h.entryOf(t)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	asked := make(chan result, 1)
	by := askerOf(r, e.probe)
	h.running.Go(func() { asked <- t.ask(ctx, e, by, r.URL.RawQuery) })
	select {
	case res := <-asked:
		res.write(w, r.Host)
	case <-ctx.Done(): // the caller has disconnected, or the agent shuts down
		ending.write(w, r.Host)
	case <-evicted(ctx):
		e.metrics.count(errored)
		overloaded.write(w, r.Host)
	}
}

// entryOf returns the entry that counts and logs the verdicts of a target. The number of entries is bounded by the
// targets that the Dataplane has had.
func (h *Handler) entryOf(t Target) *entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.targets[t]
	if e == nil {
		e = newEntry(mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: t.Path, Port: int32(t.Asked.Port())}}, h)
		h.targets[t] = e
	}
	return e
}

// ask makes one check, without a timeout.
func (t *Target) ask(ctx context.Context, e *entry, by asker, query string) result {
	dial := dialPod(e.h.o.Dial.or(plainClose), e.h.Address(), t.behind)
	a := &httpProber{
		template: templateOf(t.url(query), nil),
		client:   http.Client{Transport: newProbeTransport(dial), CheckRedirect: checkRedirect},
	}
	began := time.Now()
	res := a.probe(ctx, by)
	if ctx.Err() != nil { // no verdict
		return ending
	}
	if query == "" {
		e.observe(ctx, by.rules, res, time.Since(began), e.counts(by.rules))
	} else { // do not log: callers could fill the log with different queries
		e.metrics.observe(res.verdict, time.Since(began))
	}
	return res
}

// behind returns the application's address for an address that the kubelet would call. A redirect may lead to another
// port of the application.
func (t *Target) behind(at netip.AddrPort) netip.AddrPort {
	if at == t.Asked {
		return t.Application
	}
	return netip.AddrPortFrom(t.Application.Addr(), at.Port())
}
