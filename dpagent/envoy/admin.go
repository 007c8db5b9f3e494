package envoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

const (
	adminTimeout = 2 * time.Second
	// maxAnswer is more than all the gauges of a drain take, in bytes.
	maxAnswer = 8 << 20
)

// newClient returns an HTTP client of a Unix socket. It opens a connection for each call, since Envoy may have been
// restarted since the last one.
func newClient(to *net.UnixAddr) *http.Client {
	return &http.Client{
		Timeout: adminTimeout,
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				var d net.Dialer
				return d.DialContext(ctx, to.Net, to.Name)
			},
		},
	}
}

// Post sends a POST request to Envoy's admin interface.
func (e *Envoy) Post(ctx context.Context, path string) error {
	_, err := fetch(ctx, e.admin, http.MethodPost, path)
	return err
}

// Get sends a GET request to Envoy's admin interface and returns the body.
func (e *Envoy) Get(ctx context.Context, path string) ([]byte, error) {
	return fetch(ctx, e.admin, http.MethodGet, path)
}

func fetch(ctx context.Context, c *http.Client, method, path string) ([]byte, error) {
	request, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return nil, err
	}
	answer, err := c.Do(request)
	if err != nil {
		return nil, fmt.Errorf("call envoy: %w", err)
	}
	defer func() { _ = answer.Body.Close() }() // it is read to its end, or given up
	body, err := io.ReadAll(io.LimitReader(answer.Body, maxAnswer))
	if err != nil {
		return nil, fmt.Errorf("read envoy's answer to %s: %w", path, err)
	}
	if answer.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: envoy answers %s", method, path, answer.Status)
	}
	return body, nil
}
