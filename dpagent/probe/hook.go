package probe

import (
	"context"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// hookAsker calls a lifecycle hook as the kubelet does: with no limit of time, and whatever the status is.
// Source: kubernetes pkg/kubelet/lifecycle/handlers.go.
type hookAsker struct {
	request *request
	client  http.Client
	// transport keeps connections during one call, as the kubelet's does beyond that.
	transport *http.Transport
}

func newHook(t *http.Transport, podIP netip.Addr, g *mesh.HTTPGetProbe) *hookAsker {
	return &hookAsker{
		request:   newRequest(podIP, g),
		client:    http.Client{Transport: t, CheckRedirect: checkRedirect},
		transport: t,
	}
}

func (a *hookAsker) ask(ctx context.Context, userAgent string) result {
	if a.request.err != nil {
		return result{verdict: Failure, reason: reason(a.request.err)}
	}
	defer a.transport.CloseIdleConnections()
	req := a.request.with(ctx, userAgent)
	err := a.call(req)
	if plainHTTP(err) {
		req = req.Clone(ctx)
		req.URL.Scheme = "http"
		req.Header.Del("Authorization")
		if a.call(req) == nil {
			return result{verdict: Success, reason: "HTTPS is not spoken there, HTTP is"}
		}
	}
	if err != nil {
		return result{verdict: Failure, reason: reason(err)}
	}
	return result{verdict: Success}
}

func (a *hookAsker) call(req *http.Request) error {
	res, err := a.client.Do(req)
	if err != nil {
		return err
	}
	// The kubelet waits for a short body and does not care how it ends.
	if res.ContentLength <= maxBody {
		_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxBody))
	}
	_ = res.Body.Close() // as above
	return nil
}

// serveHook calls the hook, and answers only if the call went through: the kubelet ignores the status, and takes the end
// of the connection for the failed call that it is. Each answer ends the connection too: on one that it keeps, the
// kubelet would make an aborted call again.
func (e *entry) serveHook(w http.ResponseWriter, r *http.Request) {
	pin(r.Context())
	w.Header().Set("Connection", "close")
	begin := time.Now()
	result := e.ask.ask(r.Context(), e.userAgent(r))
	e.metrics.count(result.verdict)
	e.metrics.duration.Observe(time.Since(begin).Seconds())
	logger := e.logger(result.verdict)
	if result.verdict != Success {
		logger.Warn("hook failed", "err", result.reason)
		panic(http.ErrAbortHandler)
	}
	logger.Info("hook called", "after", time.Since(begin).String())
	result.tell(w)
}
