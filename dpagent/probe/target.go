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

// Target is what a port or path is for, of a written Dataplane.
type Target struct {
	// Asked is what the kubelet would have asked without the mesh, Application where the application listens that is behind it.
	Asked, Application netip.AddrPort
	// Path is asked for by HTTP. It begins with a slash.
	Path string
}

// url returns what the kubelet would have asked for.
func (t *Target) url(query string) *url.URL {
	u, err := url.Parse("http://" + t.Asked.String() + t.Path)
	if err != nil { // the kubelet, too, then takes it as a plain path
		u = &url.URL{Scheme: "http", Host: t.Asked.String(), Path: t.Path}
	}
	u.RawQuery = query
	return u
}

// serveTarget answers one request. It goes on for as long as its caller waits. Of the caller's request the application gets the query and a
// user agent of the kubelet, but no other header: some frameworks take method and path from headers.
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
	case <-ctx.Done(): // the caller has gone, or the agent ends
		ending.write(w, r.Host)
	case <-evicted(ctx):
		e.metrics.count(errored)
		overloaded.write(w, r.Host)
	}
}

// entryOf returns the entry that counts and logs the verdicts of a target. There are as many as the Dataplane has had.
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
	if ctx.Err() != nil { // this is no verdict
		return ending
	}
	if query == "" {
		e.observe(ctx, by.rules, res, time.Since(began))
	} else { // it is a check of its own, and callers could fill the log with such
		e.metrics.observe(res.verdict, time.Since(began))
	}
	return res
}

// behind returns where the application listens that the kubelet would reach at an address. A redirect may lead to another port of it.
func (t *Target) behind(at netip.AddrPort) netip.AddrPort {
	if at == t.Asked {
		return t.Application
	}
	return netip.AddrPortFrom(t.Application.Addr(), at.Port())
}
