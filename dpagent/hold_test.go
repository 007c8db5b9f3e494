package dpagent

import (
	"log/slog"
	"net/netip"
	"testing"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
)

// TestSetHold checks that the control plane's hold mode replaces the injected one, and that a control plane that is too
// old to send it changes nothing.
func TestSetHold(t *testing.T) {
	h, err := probe.New(probe.Options{PodIP: netip.MustParseAddr("192.0.2.1"), Port: 9000, Hold: mesh.HoldWarning})
	if err != nil {
		t.Fatal(err)
	}
	a := &Agent{probes: h, logger: slog.New(slog.DiscardHandler)}
	for _, step := range []struct {
		told *agentv1.Restarts
		want bool
	}{
		{nil, true}, {&agentv1.Restarts{}, true}, {&agentv1.Restarts{Hold: agentv1.Restarts_ERRORED}, false}, {nil, false},
		{&agentv1.Restarts{Hold: agentv1.Restarts_WARNING}, true}, {&agentv1.Restarts{Hold: 7}, true},
	} {
		a.setRestarts(step.told)
		if h.Warns() != step.want {
			t.Errorf("after %v: Warns() = %t", step.told, h.Warns())
		}
	}
}
