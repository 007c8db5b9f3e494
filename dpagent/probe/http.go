package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxBody is how much of a body the kubelet reads: what is wrong behind it goes unseen.
const maxBody = 10 << 10

// maxRedirects that a check follows.
const maxRedirects = 10

// requestTemplate makes the kubelet's requests for an httpGet.
// Source: kubernetes pkg/probe/http/request.go.
type requestTemplate struct {
	base *http.Request
	err  error // why there is none

	mu    sync.Mutex
	agent string // whom header is for
	// header must not be modified: it is shared by the requests of one user agent.
	header http.Header
}

func newRequestTemplate(podIP netip.Addr, g *mesh.HTTPGetProbe) *requestTemplate {
	u, err := g.URL(podIP.String())
	if err != nil {
		return &requestTemplate{err: err}
	}
	header := http.Header{}
	for _, h := range g.HTTPHeaders {
		header.Add(h.Name, h.Value)
	}
	if _, set := header["Accept"]; !set {
		header.Set("Accept", "*/*")
	} else if header.Get("Accept") == "" {
		header.Del("Accept")
	}
	base, err := http.NewRequest(http.MethodGet, u.String(), nil) //nolint:noctx // each check has its own, see with
	if err != nil {
		return &requestTemplate{err: err}
	}
	base.Header = header
	base.Host = header.Get("Host") // net/http takes no Host from the headers
	return &requestTemplate{base: base, header: header}
}

// request returns a request. A user agent that the user has set, even to nothing, stays.
func (r *requestTemplate) request(ctx context.Context, userAgent string) *http.Request {
	req := r.base.WithContext(ctx)
	if _, set := r.base.Header["User-Agent"]; set {
		return req
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.agent != userAgent {
		r.agent, r.header = userAgent, r.base.Header.Clone()
		r.header.Set("User-Agent", userAgent)
	}
	req.Header = r.header
	return req
}

// checkRedirect stops where another host is named, whatever its address, and after ten.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// httpProber checks as the kubelet does.
// Source: kubernetes pkg/probe/http/http.go.
type httpProber struct {
	template *requestTemplate
	client   http.Client
}

func newHTTPProber(t *http.Transport, podIP netip.Addr, g *mesh.HTTPGetProbe, timeout time.Duration) *httpProber {
	return &httpProber{
		template: newRequestTemplate(podIP, g),
		client:   http.Client{Transport: t, CheckRedirect: checkRedirect, Timeout: timeout},
	}
}

func (a *httpProber) probe(ctx context.Context, userAgent string) result {
	if a.template.err != nil {
		return result{verdict: errored, reason: reason(a.template.err)}
	}
	res, err := a.client.Do(a.template.request(ctx, userAgent))
	if err != nil {
		return failureOf(err)
	}
	defer func() { _ = res.Body.Close() }() // it was read, or is not wanted
	// In steps as the kubelet reads it: where a body is cut near the limit they decide what is seen.
	if _, err := io.ReadAll(io.LimitReader(res.Body, maxBody)); err != nil {
		return result{verdict: errored, reason: reason(err)}
	}
	switch status := res.StatusCode; {
	case status < http.StatusOK || status >= http.StatusBadRequest:
		return result{verdict: failure, status: status, reason: fmt.Sprintf("HTTP probe failed with statuscode: %d", status)}
	case status >= http.StatusMultipleChoices:
		return result{verdict: warning, reason: fmt.Sprintf("the application answered %d, which is not followed", status)}
	}
	return result{verdict: success}
}

// isPlainHTTP tells that a server spoke HTTP where TLS was expected.
func isPlainHTTP(err error) bool { return errors.Is(err, http.ErrSchemeMismatch) }
