package agents_test

import (
	"net/netip"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// wantInbounds waits for an Inbounds message, and checks it: "" means that all are accepted.
func (a *agent) wantInbounds(want string) {
	a.h.t.Helper()
	m := next(a, "the state of its inbounds", a.inbounds)
	if m.GetAccepted() != (want == "") || !strings.Contains(m.GetReason(), want) {
		a.h.t.Fatalf("sent %v, want %q", m, want)
	}
}

func accepted(list ...string) observed.Listeners {
	var l observed.Listeners
	for _, at := range list {
		l.Accepted = append(l.Accepted, netip.MustParseAddrPort(at))
	}
	return l
}

func TestInboundsFollowWhatEnvoyAccepts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const id = "default/web-1"
		h, a := joined(t, nil)
		h.server.ObserveListeners(id, observed.Listeners{})
		a.connect(false)
		a.wantInbounds("has not accepted the listener at 10.0.0.1:8080 yet")
		h.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)

		h.server.ObserveListeners(id, observed.Listeners{
			Refused: map[netip.AddrPort]string{netip.MustParseAddrPort("10.0.0.1:8080"): "cannot bind", netip.MustParseAddrPort("[::]:15006"): "no IPv6"},
		})
		a.wantInbounds("envoy refuses the listener at 10.0.0.1:8080: cannot bind")

		h.server.ObserveListeners(id, accepted("10.0.0.1:8080"))
		a.wantInbounds("")
		h.becomes("web", meshview.Ready, meshview.NoReason)

		two := dataplane("default", "web-1", "web")
		two.Spec.Networking.Inbound = append(two.Spec.Networking.Inbound, mesh.Inbound{Port: 9090, Tags: mesh.Tags{mesh.TagService: "more"}})
		h.put(two)
		a.wantInbounds("10.0.0.1:9090")
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.becomes("more", meshview.NotReady, meshview.ListenerNotAccepted)
		h.put(dataplane("default", "web-1", "web"))
		a.wantInbounds("")
	})
}

func TestInboundsOfAProxyThatHasNeverJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.agent("web-1")
		a.envoy = nil
		a.mustJoin()
		h.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
		h.server.ObserveListeners("default/web-1", accepted("10.0.0.1:8080"))
		h.becomes("web", meshview.Ready, meshview.NoReason)

		// An agent that joins again does not report listeners.
		a.mustJoin()
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}

// TestInboundsOfAnEnvoyThatNeverCame restarts the control plane before Envoy has accepted any listener.
func TestInboundsOfAnEnvoyThatNeverCame(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		a := h.agent("web-1")
		a.envoy = nil
		for range 2 {
			a.mustJoin()
			h.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
			h.restart()
			h.put(dataplane("default", "web-1", "web"))
			h.synced()
			h.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
		}
		h.server.ObserveListeners("default/web-1", accepted("10.0.0.1:8080"))
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.restart()
		h.put(dataplane("default", "web-1", "web"))
		h.synced()
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}

// TestInboundsOfAProxyOfTheSameName adds a proxy with the name of one that was removed long ago.
func TestInboundsOfAProxyOfTheSameName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, _ := joined(t, nil)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.delete("web-1")
		h.ahead.Store(int64(25 * time.Hour)) // its certificate has expired
		h.hasRecords()
		h.fill("web-1")
		h.becomes("web", meshview.NotReady, meshview.NeverJoined)
		a := h.agent("web-1")
		a.envoy = nil
		a.mustJoin()
		h.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
	})
}

// TestInboundsAfterARestart checks that the endpoint and the agent's state stay while Envoy's listeners are unknown.
func TestInboundsAfterARestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		a.wantInbounds("")
		a.leave()
		h.restart()
		h.put(dataplane("default", "web-1", "web"))
		h.synced()
		h.becomes("web", meshview.Ready, meshview.NoReason)
		a.connect(true) // so that another message follows the known states
		if m := a.receive(); m.GetDrainRecorded() == nil {
			t.Fatalf("got %v, want DrainRecorded", m)
		}
		if len(a.inbounds) > 0 {
			t.Errorf("sent %v, although nothing is known", <-a.inbounds)
		}
	})
}
