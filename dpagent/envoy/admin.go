package envoy

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	adminTimeout = 2 * time.Second
	// maxAnswer is larger than all gauges that a drain reads, in bytes.
	maxAnswer = 8 << 20
	// pathStats returns the statistics that have changed since Envoy started. Most others are unused.
	pathStats = "/stats/prometheus?usedonly"
)

// newClient returns an HTTP client of a Unix socket. It opens a connection for each call, since Envoy may have been
// restarted since the last one.
func newClient(
	to *net.UnixAddr, dial func(ctx context.Context, network, address string) (net.Conn, error),
) *http.Client {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return &http.Client{
		Transport: &http.Transport{
			DisableKeepAlives: true,
			DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dial(ctx, to.Net, to.Name)
			},
		},
	}
}

// Admin is Envoy's admin interface.
type Admin struct{ client *http.Client }

// NewAdmin returns the admin interface at a Unix socket.
func NewAdmin(at *net.UnixAddr) *Admin { return &Admin{newClient(at, nil)} }

// Post sends a POST request.
func (a *Admin) Post(ctx context.Context, path string) error {
	_, err := fetch(ctx, a.client, http.MethodPost, path)
	return err
}

// Get sends a GET request and returns the body.
func (a *Admin) Get(ctx context.Context, path string) ([]byte, error) {
	return fetch(ctx, a.client, http.MethodGet, path)
}

// Stats writes Envoy's statistics to w, in the text format of Prometheus. They may take MiBs, and as long as ctx
// allows.
func (a *Admin) Stats(ctx context.Context, w io.Writer) error {
	return call(ctx, a.client, http.MethodGet, pathStats, func(body io.Reader) error {
		_, err := io.Copy(w, body)
		return err
	})
}

// pages are the admin endpoints of the views. Envoy itself leaves secrets out of its configuration.
// Source: https://www.envoyproxy.io/docs/envoy/latest/operations/admin
var pages = map[mesh.EnvoyView]struct{ method, path string }{
	mesh.ViewConfigDump:   {http.MethodGet, "/config_dump?include_eds"},
	mesh.ViewListeners:    {http.MethodGet, "/listeners?format=json"},
	mesh.ViewStats:        {http.MethodGet, "/stats"},
	mesh.ViewClusters:     {http.MethodGet, "/clusters"},
	mesh.ViewCertificates: {http.MethodGet, "/certs"},
	mesh.ViewLogging:      {http.MethodPost, "/logging"}, // without a parameter, the request changes nothing
}

// View writes a view of Envoy's state to w. It may take MiBs, and as long as ctx allows.
func (a *Admin) View(ctx context.Context, view mesh.EnvoyView, w io.Writer) error {
	page, ok := pages[view]
	if !ok {
		return &mesh.FieldError{Field: "view", Value: string(view),
			Allowed: fmt.Sprintf("must be one of %v", mesh.EnvoyViews())}
	}
	return call(ctx, a.client, page.method, page.path, func(body io.Reader) error {
		_, err := io.Copy(w, body)
		return err
	})
}

func fetch(ctx context.Context, c *http.Client, method, path string) (body []byte, err error) {
	ctx, cancel := context.WithTimeout(ctx, adminTimeout)
	defer cancel()
	err = call(ctx, c, method, path, func(r io.Reader) error {
		body, err = io.ReadAll(io.LimitReader(r, maxAnswer))
		return err
	})
	return body, err
}

// call sends a request and passes the body of the response to read.
func call(ctx context.Context, c *http.Client, method, path string, read func(body io.Reader) error) error {
	request, err := http.NewRequestWithContext(ctx, method, "http://envoy"+path, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := c.Do(request)
	if err != nil {
		return fmt.Errorf("call envoy: %w", err)
	}
	defer func() { _ = answer.Body.Close() }() // read has consumed the body, or failed
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s %s: envoy responded with %s", method, path, answer.Status)
	}
	if err := read(answer.Body); err != nil {
		return fmt.Errorf("read envoy's answer to %s: %w", path, err)
	}
	return nil
}
