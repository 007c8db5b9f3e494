package agents_test

import (
	"testing"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestEndpointIsReadyOnceItsProxyHasJoined(t *testing.T) {
	w := newWorld(t, nil)
	w.fill("web-1")
	w.becomes("web", meshview.NotReady, meshview.NeverJoined)
	if got := w.phase(); got != adminv1.AgentState_NEVER_JOINED {
		t.Errorf("state is %s, want NEVER_JOINED", got)
	}
	if err := w.agent("web-1").join(); err != nil {
		t.Fatal(err)
	}
	w.becomes("web", meshview.Ready, meshview.NoReason)

	w.restart()
	w.fill("web-1")
	if e := w.endpoint("web", "web-1"); e.Health != meshview.Ready {
		t.Errorf("in the first view after a restart the endpoint is %+v", e)
	}
}

func TestLostAgentKeepsItsEndpoint(t *testing.T) {
	w, a := joined(t, nil)
	a.connect(false)
	if got := w.phase(); got != adminv1.AgentState_CONNECTED {
		t.Errorf("state is %s, want CONNECTED", got)
	}
	a.leave()
	w.eventually("the agent is lost", func() bool { return w.phase() == adminv1.AgentState_LOST })
	if n := w.metric("sonde_agents_lost", "default"); n != 1 {
		t.Errorf("sonde_agents_lost = %v, want 1", n)
	}
	since := w.server.States()["default/web-1"].GetSince().AsTime()
	w.becomes("web", meshview.Ready, meshview.NoReason)

	w.fill("web-2")
	if err := w.agent("web-2").join(); err != nil {
		t.Fatal(err)
	}
	w.builder.Delete("test", dataplane("default", "web-2", "web").Key())
	w.ahead.Store(int64(25 * time.Hour)) // all certificates have expired
	w.hasRecords("web-1.json")
	w.becomes("web", meshview.Ready, meshview.NoReason)
	if got := w.server.States()["default/web-1"].GetSince().AsTime(); !got.Equal(since) {
		t.Errorf("a day later it is lost since %s, want %s", got, since)
	}

	w.restart()
	w.fill("web-1")
	if got := w.phase(); got != adminv1.AgentState_RECONNECTING {
		t.Errorf("after a restart the state is %s, want RECONNECTING", got)
	}
	w.becomes("web", meshview.Ready, meshview.NoReason)
	if n := w.metric("sonde_agents_lost", "default"); n != 0 {
		t.Errorf("after a restart sonde_agents_lost = %v, want 0", n)
	}
	w.ahead.Store(int64(26 * time.Hour))
	if got := w.phase(); got != adminv1.AgentState_LOST {
		t.Errorf("an hour after a restart the state is %s, want LOST", got)
	}

	w.builder.Delete("test", dataplane("default", "web-1", "web").Key())
	w.hasRecords()
	w.fill("web-1")
	w.becomes("web", meshview.NotReady, meshview.NeverJoined)
}

func TestDrainedAgentIsStopped(t *testing.T) {
	w, a := joined(t, nil)
	a.connect(true)
	a.receive()
	a.leave()
	w.eventually("the agent has stopped", func() bool { return w.phase() == adminv1.AgentState_STOPPED })
	w.becomes("web", meshview.Draining, meshview.NoReason)
}

func TestAgentWithoutADataplaneIsShown(t *testing.T) {
	w := newWorld(t, nil)
	w.fill("other")
	a := w.agent("web-1")
	for range 3 {
		if err := a.join(); err == nil {
			t.Fatal("it has joined without a Dataplane")
		}
	}
	got := w.server.States()["default/web-1"]
	if want := `dataplane "web-1" of mesh "default" is not known (yet)`; got.GetPhase() != adminv1.AgentState_WAITING || got.GetRefusal() != want {
		t.Errorf("state is %v, want WAITING because %s", got, want)
	}
	waits := []string{"level=WARN", `msg="proxy waits for its Dataplane"`, "mesh=default", "proxy=web-1", "peer=127.0.0.1"}
	if lines := w.log.lines(waits...); len(lines) != 1 {
		t.Errorf("the log says %d times that it waits, want once: %s", len(lines), lines)
	}

	w.fill("web-1")
	if err := a.join(); err != nil {
		t.Fatal(err)
	}
	if got := w.phase(); got == adminv1.AgentState_WAITING {
		t.Error("it has joined, and waits still")
	}
	w.builder.Delete("test", dataplane("default", "web-1", "web").Key())
	w.eventually("the Dataplane is gone", func() bool { return w.endpoint("web", "web-1") == nil })
	if err := a.join(); err == nil {
		t.Fatal("it has joined without a Dataplane")
	}
	if lines := w.log.lines(waits...); len(lines) != 2 {
		t.Errorf("the log says %d times that it waits, want twice", len(lines))
	}
	w.ahead.Store(int64(2 * time.Minute))
	w.eventually("the agent that has stopped trying is forgotten", func() bool {
		return w.server.States()["default/web-1"] == nil
	})
}

func TestRefusalNamesWhatWasAskedFor(t *testing.T) {
	w := newWorld(t, nil)
	w.fill("web-1", "web-2")
	stranger := w.agent("web-1")
	stranger.name = "web-2"
	for range 30 {
		if err := stranger.join(); err == nil {
			t.Fatal("it has joined with the token of another")
		}
	}
	lines := w.log.lines("level=WARN", `msg="join refused"`, "mesh=default", "proxy=web-2", "peer=127.0.0.1", `not \"web-2\"`)
	if len(lines) < 1 || len(lines) > 20 {
		t.Errorf("%d lines for 30 refusals, want at least one, and not all", len(lines))
	}
	old := w.agent("web-1")
	old.token = w.token(identity.Subject{Mesh: "default", Dataplane: "web-1", Workload: "api"}, time.Hour)
	for range 3 {
		if err := old.join(); err == nil {
			t.Fatal("it has joined with a token of another workload")
		}
	}
	if lines := w.log.lines(`msg="join refused"`, "proxy=web-1", `workload \"api\"`); len(lines) != 1 {
		t.Errorf("%d lines about the workload, want one: %s", len(lines), lines)
	}
	if got := w.server.States()["default/web-1"]; got.GetRefusal() == "" {
		t.Errorf("state is %v, want why it cannot join", got)
	}
}
