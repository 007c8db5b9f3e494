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

// target is what a request of Envoy's is for.
type target struct {
	// header is the value of mesh.ProbeTargetHeader.
	header string
	// url is what the kubelet would have asked without the mesh.
	url *url.URL
	// asked is the address in url, application where the application listens that is behind it.
	asked, application netip.AddrPort
}

// targetOf returns what r is for; false if it is not a request that Envoy passes on.
func (h *Handler) targetOf(r *http.Request) (target, bool) {
	values := r.Header[mesh.ProbeTargetHeader]
	if r.Method != http.MethodGet || len(values) != 1 {
		return target{}, false
	}
	address, path, found := strings.Cut(values[0], "/")
	application, err := netip.ParseAddrPort(address)
	if err != nil || !found {
		return target{}, false
	}
	asked, err := netip.ParseAddrPort(r.Host)
	asked = netip.AddrPortFrom(asked.Addr().Unmap(), asked.Port())
	if err != nil || asked.Addr() != h.o.PodIP {
		return target{}, false
	}
	u, err := url.Parse("http://" + asked.String() + "/" + path)
	if err != nil { // the kubelet, too, then takes it as a plain path
		u = &url.URL{Scheme: "http", Host: asked.String(), Path: "/" + path}
	}
	u.RawQuery = r.URL.RawQuery
	return target{header: values[0], url: u, asked: asked, application: application}, true
}

// serveTarget answers one request of Envoy's. It goes on for as long as its caller waits. Of the caller's headers the application only
// gets a user agent of the kubelet: some frameworks take method and path from headers, which Envoy has not checked.
func (h *Handler) serveTarget(w http.ResponseWriter, r *http.Request) {
	t, ok := h.targetOf(r)
	if !ok {
		notFound(w)
		return
	}
	e := h.entryOf(t)
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	asked := make(chan result, 1)
	userAgent := e.userAgent(r)
	h.running.Go(func() { asked <- t.ask(ctx, e, userAgent) })
	select {
	case res := <-asked:
		res.write(w)
	case <-ctx.Done(): // the caller has gone, or the agent ends
		result{reason: "the agent ends"}.write(w)
	case <-evicted(ctx):
		e.metrics.count(errored)
		result{reason: "the agent is overloaded"}.write(w)
	}
}

// entryOf returns the entry that counts and logs the verdicts of a target. There are as many as the Dataplane has had.
func (h *Handler) entryOf(t target) *entry {
	h.mu.Lock()
	defer h.mu.Unlock()
	e := h.targets[t.header]
	if e == nil {
		e = newEntry(mesh.Probe{HTTPGet: &mesh.HTTPGetProbe{Path: t.url.Path, Port: int32(t.asked.Port())}}, h)
		h.targets[t.header] = e
	}
	return e
}

// ask makes one check, without a timeout.
func (t *target) ask(ctx context.Context, e *entry, userAgent string) result {
	dial := dialPod(newDialer(plainClose), e.h.Address(), t.behind)
	a := &httpProber{
		template: templateOf(t.url, nil),
		client:   http.Client{Transport: newProbeTransport(dial), CheckRedirect: checkRedirect},
	}
	began := time.Now()
	res := a.probe(ctx, userAgent)
	if ctx.Err() != nil { // this is no verdict
		return result{reason: "the agent ends"}
	}
	if t.url.RawQuery == "" {
		e.observe(ctx, res, time.Since(began))
	} else { // it is a check of its own, and callers could fill the log with such
		e.count(res, time.Since(began))
	}
	return res
}

// behind returns where the application listens that the kubelet would reach at an address. A redirect may lead to another port of it.
func (t *target) behind(at netip.AddrPort) netip.AddrPort {
	if at == t.asked {
		return t.application
	}
	return netip.AddrPortFrom(t.application.Addr(), at.Port())
}
