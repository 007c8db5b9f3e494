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

// pathNothing is a path that no probe uses.
const pathNothing = "/sonde"

// isAlive reports whether r is the kubelet's liveness probe of the agent itself. The agent always answers it with
// success: a response is enough.
func isAlive(r *http.Request) bool {
	return r.Method == http.MethodGet && r.RequestURI == mesh.PathAlive &&
		slices.Equal(r.Header[mesh.ProbeHeader], []string{mesh.ProbeAlive})
}

// Answers requests a nonexistent probe from the handler at an address, as the kubelet would, and returns why the
// handler has not answered, or nil.
func Answers(ctx context.Context, at netip.AddrPort, dial Dial) error {
	dial = dial.or(plainClose)
	transport := &http.Transport{
		DisableKeepAlives: true,
		DialContext:       func(ctx context.Context, _, _ string) (net.Conn, error) { return dial(ctx, "tcp", at.String()) },
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://sonde"+pathNothing, http.NoBody)
	if err != nil {
		return err
	}
	answer, err := transport.RoundTrip(request)
	if err != nil {
		return fmt.Errorf("call the probe handler: %w", err)
	}
	_ = answer.Body.Close() // only the status matters
	if answer.StatusCode != http.StatusNotFound {
		return fmt.Errorf("call the probe handler: status %s, want %d", answer.Status, http.StatusNotFound)
	}
	return nil
}
