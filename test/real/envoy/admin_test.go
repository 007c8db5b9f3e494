package envoy

import (
	"context"
	"fmt"
	"strings"

	"github.com/sonde-mesh/sonde/test/harness"
)

// untilLive polls the admin interface at a socket until Envoy has tried to connect to its control plane, and returns
// Envoy's statistics of the attempts.
func untilLive(ctx context.Context, socket string) (string, error) {
	client := harness.SocketClient(socket)
	var state string
	err := harness.Poll(ctx, "Envoy to try its control plane", func(ctx context.Context) error {
		tried, err := harness.Get(ctx, client, "http://envoy/stats?filter=upstream_cx_connect_fail$")
		if err == nil {
			state, err = harness.Get(ctx, client, "http://envoy/stats?filter=^control_plane")
		}
		switch {
		case err != nil:
			return err
		case tried == "" || tried == "cluster.control_plane.upstream_cx_connect_fail: 0\n":
			return fmt.Errorf("it says %q", tried)
		case strings.Contains(state, "control_plane.connected_state: 1"): // while Envoy connects
			return fmt.Errorf("it says %q", state)
		}
		return nil
	})
	return state, err
}
