package probe

import (
	"net/netip"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// BenchmarkCheck measures the agent's own checks of an application.
func BenchmarkCheck(b *testing.B) {
	a := startApp(b)
	for _, kind := range kinds {
		b.Run("kind="+kind, func(b *testing.B) {
			c := probe.NewCheck(a.entry(0, kind), netip.MustParseAddr(ip), 10*time.Second, nil)
			defer c.End()
			b.ReportAllocs()
			for b.Loop() {
				if got := c.Ask(b.Context()); !got.Passed {
					b.Fatalf("outcome = %+v", got)
				}
			}
		})
	}
}
