package probe

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxBody is how many bytes of a body the kubelet reads. It ignores errors after that.
const maxBody = 10 << 10

// maxRedirects is how many redirects a check follows.
const maxRedirects = 10

// requestTemplate makes the requests of an httpGet as the kubelet does.
// Source: kubernetes pkg/probe/http/request.go.
type requestTemplate struct {
	base *http.Request
	err  error // why base could not be made

	mu    sync.Mutex
	agent string // user agent in header
	// header must not be modified: requests with the same user agent share it.
	header http.Header
}

func newRequestTemplate(podIP netip.Addr, g *mesh.HTTPGetProbe) *requestTemplate {
	u, err := g.URL(podIP.String())
	if err != nil {
		return &requestTemplate{err: err}
	}
	return templateOf(u, g.HTTPHeaders)
}

func templateOf(u *url.URL, headers []mesh.HTTPHeader) *requestTemplate {
	header := http.Header{}
	for _, h := range headers {
		header.Add(h.Name, h.Value)
	}
	if _, set := header["Accept"]; !set {
		header.Set("Accept", "*/*")
	} else if header.Get("Accept") == "" {
		header.Del("Accept")
	}
	base, err := http.NewRequest(http.MethodGet, u.String(), nil) //nolint:noctx // each request gets its own context
	if err != nil {
		return &requestTemplate{err: err}
	}
	base.Header = header
	base.Host = header.Get("Host") // net/http ignores Host in the headers
	return &requestTemplate{base: base, header: header}
}

// request returns a new request. It keeps a User-Agent header of the user, even an empty one.
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

// checkRedirect stops at a redirect to another host name, whatever its address, and after maxRedirects redirects.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// httpProber checks an httpGet as the kubelet does.
// Source: kubernetes pkg/probe/http/http.go.
type httpProber struct {
	template *requestTemplate
	client   http.Client
	h2c      http.Client // for callers with the rule asksH2C
}

func newHTTPProber(c clients, podIP netip.Addr, g *mesh.HTTPGetProbe, timeout time.Duration) *httpProber {
	return &httpProber{
		template: newRequestTemplate(podIP, g),
		client:   http.Client{Transport: c.probe, CheckRedirect: checkRedirect, Timeout: timeout},
		h2c:      http.Client{Transport: c.h2c, CheckRedirect: checkRedirect, Timeout: timeout},
	}
}

func (a *httpProber) probe(ctx context.Context, by asker) result {
	if a.template.err != nil {
		return result{verdict: errored, class: Failed, reason: reason(a.template.err)}
	}
	client := &a.client
	if by.rules&asksH2C != 0 {
		client = &a.h2c
	}
	return judge(client, a.template.request(ctx, by.agent))
}

// judge sends a request, and judges the response as the kubelet does.
func judge(client *http.Client, req *http.Request) result {
	res, err := client.Do(req)
	if err != nil {
		return failureOf(err)
	}
	defer func() { _ = res.Body.Close() }() // read as far as needed
	if res.StatusCode == http.StatusSwitchingProtocols {
		// Neither timeout nor context ends the connection of a 101, so the kubelet's own check would never end.
		end := func() { _ = res.Body.Close() }
		defer context.AfterFunc(req.Context(), end)()
		if client.Timeout > 0 {
			defer time.AfterFunc(client.Timeout, end).Stop()
		}
	}
	// Read in the same steps as the kubelet: they decide whether a body that is cut near the limit causes an error.
	body, err := io.ReadAll(io.LimitReader(res.Body, maxBody))
	if err != nil {
		return result{verdict: errored, class: classOf(err), reason: reason(err)}
	}
	switch status := res.StatusCode; {
	case status < http.StatusOK || status >= http.StatusBadRequest:
		return result{verdict: failure, status: status, class: HTTPStatus,
			reason: fmt.Sprintf("HTTP probe failed with statuscode: %d", status)}
	case status >= http.StatusMultipleChoices:
		return result{
			verdict: warning, class: Redirect, reason: fmt.Sprintf("the application responded with a redirect that is not followed: status %d", status),
			stopped: stoppedRedirect{location: res.Header.Get("Location"), body: body},
		}
	}
	return result{verdict: success}
}

// isPlainHTTP reports whether a server responded in plain HTTP where TLS was expected.
func isPlainHTTP(err error) bool { return errors.Is(err, http.ErrSchemeMismatch) }
