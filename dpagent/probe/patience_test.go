package probe

import (
	"net"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// TestWhoHasJustComeMayAsk connects more callers than the limit: a new caller gets askPatience to send its request
// before it can be evicted.
func TestWhoHasJustComeMayAsk(t *testing.T) {
	for name, tc := range map[string]struct{ since, want time.Duration }{
		"just come":     {0, askPatience},
		"some time ago": {askPatience / 4, askPatience * 3 / 4},
		"long ago":      {time.Minute, 0},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			all := newConnections(1)
			caller := func() *conn {
				client, server := net.Pipe()
				t.Cleanup(func() { _ = client.Close() })
				return all.add(server)
			}
			first := caller()
			<-time.After(tc.since)
			begin := time.Now()
			second := caller()
			if got := time.Since(begin); got != tc.want {
				t.Errorf("the next one waits %s, want %s", got, tc.want)
			}
			select {
			case <-first.evicted:
			default:
				t.Error("the first caller was not evicted")
			}
			_, _ = first.Close(), second.Close()
		})
	}
}
