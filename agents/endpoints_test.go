package agents_test

import (
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// knows waits until the agent is told that its endpoints are ready, for want "", or else why not.
func (a *agent) knows(want string) {
	a.h.t.Helper()
	last := "nothing"
	deadline := time.After(patience)
	for {
		select {
		case m := <-a.inbox:
			e := m.GetEndpoints()
			if e == nil {
				continue
			}
			if last = e.String(); e.GetReady() == (want == "") && strings.Contains(e.GetReason(), want) {
				return
			}
		case <-deadline:
			a.h.t.Fatalf("told last %s of its endpoints, want %q", last, want)
		}
	}
}

// knowsNothing checks that nothing is told of the endpoints.
func (a *agent) knowsNothing(why string) {
	a.h.t.Helper()
	select {
	case m := <-a.inbox:
		a.h.t.Errorf("told %v, %s", m, why)
	case <-time.After(quiet):
	}
}

// quiet is how long a test checks that something does not happen.
const quiet = 50 * time.Millisecond

func TestEndpointsUntilTheyAreReady(t *testing.T) {
	h, a := joinedWithProbe(t, nil)
	a.features = append(a.features, "endpoints")
	h.server.ObserveListeners("default/web-1", observed.Listeners{})
	a.connect(false)
	a.knows("envoy has not accepted the listener at 10.0.0.1:8080 yet")
	h.server.ObserveListeners("default/web-1", accepted(web))
	a.knows("10.0.0.1:8080 is not ready: " + notReported)
	a.says(web + " connection refused")
	a.knows("10.0.0.1:8080 is not ready: " + failed + "connection refused")
	a.says(web)
	a.knows("")

	// What its Dataplane declares is not waited for.
	h.put(withProbe(func(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].Health = &mesh.Health{Ready: new(bool)} }))
	h.becomes("web", meshview.NotReady, meshview.DeclaredNotReady)
	a.heard()
	a.knowsNothing("and nothing is waited for")
}

// TestEndpointsAreOnTheirWay tells an agent that its endpoint is ready once other proxies have taken it.
func TestEndpointsAreOnTheirWay(t *testing.T) {
	taken := make(chan func(), 20)
	h := newHarness(t, nil)
	h.apply = func(c meshview.Change) {
		if len(c.Observed) > 0 {
			taken <- h.server.Publishing(c.Observed)
		}
	}
	h.restart()
	h.put(withProbe(same))
	h.builder.Synced("test")
	h.eventually("the view has the dataplane", func() bool {
		_, p := h.builder.View().Proxy("default/web-1")
		return p != nil
	})
	a := h.agent("web-1")
	a.features = append(a.features, "endpoints")
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	a.connect(false)
	a.says(web)
	h.becomes("web", meshview.Ready, meshview.NoReason)
	a.knows("on its way to other proxies")
	a.heard()
	a.knowsNothing("and the change is on its way")
	for len(taken) > 0 {
		(<-taken)()
	}
	a.knows("")
}

func TestEndpointsAreForAgentsThatReadThem(t *testing.T) {
	_, a := joined(t, nil)
	a.connect(false)
	a.heard()
	a.knowsNothing("and the agent has not the feature")
}
