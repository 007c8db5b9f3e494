package probe

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// pathNothing is no VirtualPath of any probe.
const pathNothing = "/sonde"

// isAlive reports whether the kubelet asks for the agent itself. There is nothing in it that its answer depends on: that it answers is enough.
func isAlive(r *http.Request) bool {
	return r.Method == http.MethodGet && r.RequestURI == mesh.PathAlive && slices.Equal(r.Header[mesh.ProbeHeader], []string{mesh.ProbeAlive})
}

// Answers asks where the handler is served for a probe that there is not, as the kubelet would ask, and returns why the handler has not
// answered, nil if it has.
func Answers(ctx context.Context, at netip.AddrPort, dial Dial) error {
	dial = dial.or(plainClose)
	transport := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dial(ctx, "tcp", at.String())
	}}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sonde"+pathNothing, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("ask the probe handler: %w", err)
	}
	_ = answer.Body.Close() // its status says enough
	if answer.StatusCode != http.StatusNotFound {
		return fmt.Errorf("ask the probe handler for nothing: it answers %s, want %d", answer.Status, http.StatusNotFound)
	}
	return nil
}
