package probe

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/run"
)

// hookProber calls a lifecycle hook as the kubelet does: without a timeout, and ignoring the status.
// Source: kubernetes pkg/kubelet/lifecycle/handlers.go.
type hookProber struct {
	template *requestTemplate
	client   http.Client
	// transport of client. It keeps connections during a call; the kubelet's keeps them longer.
	transport *http.Transport
}

func newHookProber(t *http.Transport, podIP netip.Addr, g *mesh.HTTPGetProbe) *hookProber {
	return &hookProber{
		template:  newRequestTemplate(podIP, g),
		client:    http.Client{Transport: t, CheckRedirect: checkRedirect},
		transport: t,
	}
}

func (a *hookProber) probe(ctx context.Context, by asker) result {
	if a.template.err != nil {
		return result{verdict: failure, class: Failed, reason: reason(a.template.err)}
	}
	defer a.transport.CloseIdleConnections()
	req := a.template.request(ctx, by.agent)
	err := a.call(req)
	if isPlainHTTP(err) {
		req = req.Clone(ctx)
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		if a.call(req) == nil {
			return result{verdict: success, reason: "the application uses HTTP, not HTTPS"}
		}
	}
	if err != nil {
		return result{verdict: failure, class: classOf(err), reason: reason(err)}
	}
	return result{verdict: success}
}

func (a *hookProber) call(req *http.Request) error {
	res, err := a.client.Do(req)
	if err != nil {
		return err
	}
	// The kubelet reads a short body and ignores its errors.
	if res.ContentLength <= maxBody {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxBody))
	}
	_ = res.Body.Close() // as above
	return nil
}

// hookCount is the number of running hooks.
type hookCount struct {
	n     atomic.Int32
	ended run.Signal // has a value if a hook has ended since it was last read
}

func (h *hookCount) end() {
	h.n.Add(-1)
	h.ended.Set()
}

// serveHook calls the hook, and answers only if the call succeeds: the kubelet ignores the status, and treats an
// aborted connection as a failed call. Each answer closes its connection, since the kubelet retries an aborted call on
// a reused connection.
func (e *entry) serveHook(w http.ResponseWriter, r *http.Request) {
	e.h.hooks.n.Add(1)
	defer e.h.hooks.end()
	pinConnection(r.Context())
	w.Header().Set("Connection", "close")
	begin := time.Now()
	result := e.prober.probe(r.Context(), askerOf(r, e.probe))
	e.metrics.observe(result.verdict, time.Since(begin))
	logger := e.logger(result.verdict)
	if result.verdict != success {
		logger.Warn("hook failed", "err", result.reason)
		e.tell(result)
		panic(http.ErrAbortHandler)
	}
	if result.reason != "" { // without the mesh, the kubelet would write an event
		logger.Warn("hook fell back to HTTP", "err", result.reason)
	}
	logger.Info("hook called", "took", time.Since(begin))
	result.write(w, r.Host)
}
