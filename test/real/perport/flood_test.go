package perport

import (
	"context"
	"fmt"
	"testing"
	"time"

	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"k8s.io/kubernetes/pkg/probe"

	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
	"github.com/sonde-mesh/sonde/test/strangers"
)

const (
	// floodConnections is the number at each port for probes. Envoy's listener used to allow 1,024.
	floodConnections = 2000
	floodTime        = 8 * time.Second
	// floodTimeout is the timeout of probes in a flood, and their longest allowed duration.
	floodTimeout = 2 * time.Second
)

// TestFloods floods all ports for probes, and probes as the kubelet does: each probe gets its application's verdict.
// The race detector would multiply the work that the flood causes, so the programs are the released ones.
func TestFloods(t *testing.T) {
	released, err := harness.Build(t.Context(), false)
	must.Do(t, err)
	toHTTP, toGRPC, toEither := func(s *seed) int { return s.http }, func(s *seed) int { return s.rpc }, func(s *seed) int { return s.grpc }
	for name, tc := range map[string]struct {
		port      func(*seed) int
		addresses int
		kind      string
	}{
		"HTTP, idle, one address": {toHTTP, 1, "idle"}, "HTTP, idle, many addresses": {toHTTP, 600, "idle"}, "HTTP, all shapes": {toHTTP, 100, "http"},
		"gRPC, idle, one address": {toGRPC, 1, "idle"}, "gRPC, idle, many addresses": {toGRPC, 600, "idle"},
		"gRPC, all shapes": {toGRPC, 100, "http2"}, "gRPC or TCP, all shapes": {toEither, 100, "http2"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSeed(t, perPort, harness.Options{Programs: released, MeshYAML: harness.MeshYAML("PERMISSIVE")}, harness.ProxyOptions{})
			drained(t, newWeb(t, app(s.inboundApp), app(s.other)))
			newSilent(t, app(s.tcp))
			status := health.NewServer()
			status.SetServingStatus("sick", healthpb.HealthCheckResponse_NOT_SERVING)
			newGRPC(t, app(s.grpc), status)
			newGRPC(t, app(s.rpc), status)
			inbound := fmt.Sprintf("/%d/metrics", s.inbound)
			checks := map[string]func(context.Context) error{
				"HTTP": s.asksHTTP(inbound, floodTimeout, probe.Success), "HTTP, sick": s.asksHTTP(inbound+"?status=500", floodTimeout, probe.Failure),
				"gRPC": asksGRPCWithin(s.rpc, "", floodTimeout, probe.Success), "gRPC, sick": asksGRPCWithin(s.rpc, "sick", floodTimeout, probe.Failure),
				"gRPC or TCP, by gRPC": asksGRPCWithin(s.grpc, "", floodTimeout, probe.Success), "gRPC or TCP, by TCP": asksTCP(s.grpc, probe.Success),
				"TCP": asksTCP(s.tcp, probe.Success),
			}
			for what, check := range checks {
				must.Poll(t, what+" before the flood", check)
			}
			attack := strangers.Attack{Connections: floodConnections, Addresses: tc.addresses, Kind: tc.kind, Path: inbound}
			opened, stop := attack.Start(t, fmt.Sprint(address, ":", tc.port(s)))
			defer stop()
			must.Poll(t, "the flood to start", func(context.Context) error {
				if n := opened(); n < floodConnections {
					return fmt.Errorf("%d connections", n)
				}
				return nil
			})
			asked := 0
			second := time.NewTicker(time.Second)
			defer second.Stop()
			for end := time.Now().Add(floodTime); time.Now().Before(end); <-second.C {
				for what, check := range checks {
					asked++
					if err := check(t.Context()); err != nil {
						t.Errorf("%s: %v", what, err)
					}
				}
			}
			t.Logf("%d connections in all, %d probes", opened(), asked)
		})
	}
}

// drained discards the requests that an application has recorded.
func drained(t testing.TB, w *web) {
	t.Helper()
	go func() {
		for {
			select {
			case <-w.requests:
			case <-w.left:
			case <-t.Context().Done():
				return
			}
		}
	}()
}
