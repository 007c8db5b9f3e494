package agents_test

import (
	"strings"
	"testing"
	"testing/synctest"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// wantEndpoints waits until the agent receives Endpoints with the reason want, or ready ones for want "".
func (a *agent) wantEndpoints(want string) {
	a.h.t.Helper()
	for {
		e := a.receive().GetEndpoints()
		a.h.t.Logf("its endpoints are %v, want %q", e, want)
		if e != nil && e.GetReady() == (want == "") && strings.Contains(e.GetReason(), want) {
			return
		}
	}
}

func TestEndpointsUntilTheyAreReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joinedWithProbe(t, nil)
		a.features = append(a.features, "endpoints")
		h.server.ObserveListeners("default/web-1", observed.Listeners{})
		a.connect(false)
		a.wantEndpoints("envoy has not accepted the listener at 10.0.0.1:8080 yet")
		h.server.ObserveListeners("default/web-1", accepted(web))
		a.wantEndpoints("10.0.0.1:8080 is not ready: " + notReported)
		a.reportApplications(web + " connection refused")
		a.wantEndpoints("10.0.0.1:8080 is not ready: " + failed + "connection refused")
		a.reportApplications(web)
		a.wantEndpoints("")

		// Endpoints that the Dataplane declares not ready are ignored.
		h.put(withProbe(func(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].Health = &mesh.Health{Ready: new(bool)} }))
		h.becomes("web", meshview.NotReady, meshview.DeclaredNotReady)
		a.heard()
		a.wantNothing("nothing is waited for")
	})
}

// TestEndpointsAreOnTheirWay checks that an agent receives a ready endpoint only after other proxies have it.
func TestEndpointsAreOnTheirWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		taken := make(chan func(), 20)
		h := newHarness(t, nil)
		h.apply = func(c meshview.Change) {
			if len(c.Observed) > 0 {
				taken <- h.server.Publishing(c.Observed)
			}
		}
		h.restart()
		h.put(withProbe(same))
		h.synced()
		a := h.agent("web-1")
		a.features = append(a.features, "endpoints")
		a.mustJoin()
		a.connect(false)
		a.reportApplications(web)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		a.wantEndpoints("on its way to other proxies")
		a.heard()
		a.wantNothing("the change is on its way")
		for len(taken) > 0 {
			(<-taken)()
		}
		a.wantEndpoints("")
	})
}

func TestEndpointsAreForAgentsThatReadThem(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a := joined(t, nil)
		a.connect(false)
		a.heard()
		a.wantNothing("the agent lacks the feature")
	})
}
