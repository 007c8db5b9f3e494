package agents_test

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// told waits until the agent is told something of its inbounds, and checks it: "" is that all are accepted.
func (a *agent) told(want string) {
	a.w.t.Helper()
	select {
	case m := <-a.inbounds:
		if m.GetAccepted() != (want == "") || !strings.Contains(m.GetReason(), want) {
			a.w.t.Fatalf("told %v, want %q", m, want)
		}
	case <-time.After(patience):
		a.w.t.Fatalf("told nothing of its inbounds, want %q", want)
	}
}

func accepted(list ...string) agents.Listeners {
	var l agents.Listeners
	for _, at := range list {
		l.Accepted = append(l.Accepted, netip.MustParseAddrPort(at))
	}
	return l
}

func TestInboundsFollowWhatEnvoyAccepts(t *testing.T) {
	const id = "default/web-1"
	w, a := joined(t, nil)
	w.server.ObserveListeners(id, agents.Listeners{})
	a.connect(false)
	a.told("has not accepted the listener at 10.0.0.1:8080 yet")
	w.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)

	w.server.ObserveListeners(id, agents.Listeners{
		Refused: map[netip.AddrPort]string{netip.MustParseAddrPort("10.0.0.1:8080"): "cannot bind", netip.MustParseAddrPort("[::]:15006"): "no IPv6"},
	})
	a.told("envoy refuses the listener at 10.0.0.1:8080: cannot bind")

	w.server.ObserveListeners(id, accepted("10.0.0.1:8080"))
	a.told("")
	w.becomes("web", meshview.Ready, meshview.NoReason)

	two := dataplane("default", "web-1", "web")
	two.Spec.Networking.Inbound = append(two.Spec.Networking.Inbound, mesh.Inbound{Port: 9090, Tags: mesh.Tags{mesh.TagService: "more"}})
	w.put(two)
	a.told("10.0.0.1:9090")
	w.becomes("web", meshview.Ready, meshview.NoReason)
	w.becomes("more", meshview.NotReady, meshview.ListenerNotAccepted)
	w.put(dataplane("default", "web-1", "web"))
	a.told("")
}

func TestInboundsOfAProxyThatHasNeverJoined(t *testing.T) {
	w := newWorld(t, nil)
	w.fill("web-1")
	a := w.agent("web-1")
	a.envoy = nil
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	w.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
	w.server.ObserveListeners("default/web-1", accepted("10.0.0.1:8080"))
	w.becomes("web", meshview.Ready, meshview.NoReason)

	// An agent that joins again says nothing about its Envoy.
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	w.becomes("web", meshview.Ready, meshview.NoReason)
}

// TestInboundsOfAnEnvoyThatNeverCame restarts the control plane before Envoy has accepted anything.
func TestInboundsOfAnEnvoyThatNeverCame(t *testing.T) {
	w := newWorld(t, nil)
	w.fill("web-1")
	a := w.agent("web-1")
	a.envoy = nil
	for range 2 {
		if err := a.join(); err != nil {
			t.Fatal(err)
		}
		w.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
		w.restart()
		w.put(dataplane("default", "web-1", "web"))
		w.builder.Synced("test")
		w.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
	}
	w.server.ObserveListeners("default/web-1", accepted("10.0.0.1:8080"))
	w.becomes("web", meshview.Ready, meshview.NoReason)
	w.restart()
	w.put(dataplane("default", "web-1", "web"))
	w.builder.Synced("test")
	w.becomes("web", meshview.Ready, meshview.NoReason)
}

// TestInboundsOfAProxyOfTheSameName has a new proxy with the name of one that is gone for long.
func TestInboundsOfAProxyOfTheSameName(t *testing.T) {
	w, _ := joined(t, nil)
	w.becomes("web", meshview.Ready, meshview.NoReason)
	w.builder.Delete("test", dataplane("default", "web-1", "web").Key())
	w.ahead.Store(int64(25 * time.Hour)) // its certificate has expired
	w.hasRecords()
	w.fill("web-1")
	w.becomes("web", meshview.NotReady, meshview.NeverJoined)
	a := w.agent("web-1")
	a.envoy = nil
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	w.becomes("web", meshview.NotReady, meshview.ListenerNotAccepted)
}

// TestInboundsAfterARestart has nothing known of Envoy yet: the endpoint stays, and the agent keeps what it was told.
func TestInboundsAfterARestart(t *testing.T) {
	w, a := joined(t, nil)
	a.connect(false)
	a.told("")
	a.leave()
	w.restart()
	w.put(dataplane("default", "web-1", "web"))
	w.builder.Synced("test")
	w.becomes("web", meshview.Ready, meshview.NoReason)
	a.connect(true) // so that something is sent after what is known
	if m := a.receive(); m.GetDrainRecorded() == nil {
		t.Fatalf("got %v, want DrainRecorded", m)
	}
	if len(a.inbounds) > 0 {
		t.Errorf("told %v, and nothing is known", <-a.inbounds)
	}
}
