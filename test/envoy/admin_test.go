package envoy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"time"
)

// untilLive asks the admin interface at a socket until Envoy has tried to reach its control plane, and returns what Envoy
// says about that.
func untilLive(ctx context.Context, socket string) (string, error) {
	client := &http.Client{Transport: &http.Transport{
		DisableKeepAlives: true,
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", socket)
		},
	}}
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		tried, err := ask(ctx, client, "/stats?filter=upstream_cx_connect_fail$")
		if err == nil && tried != "" && tried != "cluster.control_plane.upstream_cx_connect_fail: 0\n" {
			return ask(ctx, client, "/stats?filter=^control_plane")
		}
		select {
		case <-ctx.Done():
			return "", fmt.Errorf("%w; last: %q, %w", ctx.Err(), tried, err)
		case <-tick.C:
		}
	}
}

func ask(ctx context.Context, client *http.Client, path string) (string, error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://envoy"+path, nil)
	if err != nil {
		return "", err
	}
	response, err := client.Do(request)
	if err != nil {
		return "", err
	}
	body, err := io.ReadAll(response.Body)
	return string(body), errors.Join(err, response.Body.Close())
}
