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

// Admin is Envoy's admin interface.
type Admin struct{ client *http.Client }

// NewAdmin returns the admin interface at a Unix socket.
func NewAdmin(at *net.UnixAddr) *Admin { return &Admin{newClient(at)} }

// Post sends a POST request.
func (a *Admin) Post(ctx context.Context, path string) error {
	_, err := fetch(ctx, a.client, http.MethodPost, path)
	return err
}

// Get sends a GET request and returns the body.
func (a *Admin) Get(ctx context.Context, path string) ([]byte, error) {
	return fetch(ctx, a.client, http.MethodGet, path)
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
