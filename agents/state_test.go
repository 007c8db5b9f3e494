package agents_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	"github.com/sonde-mesh/sonde/agents"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestEndpointIsReadyOnceItsProxyHasJoined(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1")
		h.becomes("web", meshview.NotReady, meshview.NeverJoined)
		if got := h.phase(); got != adminv1.AgentState_NEVER_JOINED {
			t.Errorf("state is %s, want NEVER_JOINED", got)
		}
		h.agent("web-1").mustJoin()
		h.becomes("web", meshview.Ready, meshview.NoReason)

		h.restart()
		h.fill("web-1")
		if e := h.endpoint("web", "web-1"); e.Health != meshview.Ready {
			t.Errorf("in the first view after a restart the endpoint is %+v", e)
		}
	})
}

// TestExpiredCertificate has the clock jump, as on a machine that slept, so that certificates expire without any
// message: each answer shows that they are expired until the agents have new ones.
func TestExpiredCertificate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		h.becomes("web", meshview.Ready, meshview.NoReason)
		h.ahead.Store(int64(72 * time.Hour))
		h.becomes("web", meshview.Draining, meshview.CertificateExpired)
		a.token = h.token(identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/web"}, time.Hour)
		a.mustJoin()
		h.becomes("web", meshview.Ready, meshview.NoReason)
	})
}

func TestLostAgentKeepsItsEndpoint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		if got := h.phase(); got != adminv1.AgentState_CONNECTED {
			t.Errorf("state is %s, want CONNECTED", got)
		}
		a.leave()
		h.eventually("the agent may come back", func() bool { return h.phase() == adminv1.AgentState_RECONNECTING })
		if n := h.metric("sonde_agents_lost", "default"); n != 0 {
			t.Errorf("sonde_agents_lost = %v while the agent may come back, want 0", n)
		}
		h.ahead.Store(int64(time.Minute))
		if got := h.phase(); got != adminv1.AgentState_LOST {
			t.Errorf("a minute later the state is %s, want LOST", got)
		}
		if n := h.metric("sonde_agents_lost", "default"); n != 1 {
			t.Errorf("sonde_agents_lost = %v, want 1", n)
		}
		since := h.server.States()["default/web-1"].GetSince().AsTime()
		h.becomes("web", meshview.Ready, meshview.NoReason)

		h.fill("web-2")
		h.agent("web-2").mustJoin()
		h.delete("web-2")
		h.ahead.Store(int64(25 * time.Hour)) // all certificates have expired
		h.hasRecords("web-1.json")
		h.becomes("web", meshview.Draining, meshview.CertificateExpired)
		if got := h.server.States()["default/web-1"].GetSince().AsTime(); !got.Equal(since) {
			t.Errorf("a day later it is lost since %s, want %s", got, since)
		}

		h.restart()
		h.fill("web-1")
		if got := h.phase(); got != adminv1.AgentState_RECONNECTING {
			t.Errorf("after a restart the state is %s, want RECONNECTING", got)
		}
		h.becomes("web", meshview.Draining, meshview.CertificateExpired)
		if n := h.metric("sonde_agents_lost", "default"); n != 0 {
			t.Errorf("after a restart sonde_agents_lost = %v, want 0", n)
		}
		h.ahead.Store(int64(26 * time.Hour))
		if got := h.phase(); got != adminv1.AgentState_LOST {
			t.Errorf("an hour after a restart the state is %s, want LOST", got)
		}

		h.delete("web-1")
		h.hasRecords()
		h.fill("web-1")
		h.becomes("web", meshview.NotReady, meshview.NeverJoined)
	})
}

func TestDrainedAgentIsStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(true)
		a.receive()
		a.leave()
		h.eventually("the agent has stopped", func() bool { return h.phase() == adminv1.AgentState_STOPPED })
		h.becomes("web", meshview.Draining, meshview.NoReason)
		if stopped, lost := h.metric("sonde_agents_stopped", "default"), h.metric("sonde_agents_lost", "default"); stopped != 1 || lost != 0 {
			t.Errorf("sonde_agents_stopped = %v and sonde_agents_lost = %v, want 1 and 0", stopped, lost)
		}
	})
}

// TestAgentLearnsWhyItHasNoDataplane checks that the agent, and callers of the admin API, get the reason if it is
// known.
func TestAgentLearnsWhyItHasNoDataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const why = "its pod does not count"
		h := newHarness(t, func(o *agents.Options) {
			o.Absent = func(who identity.Subject) string {
				if who.ID() != "default/web-1" {
					return ""
				}
				return why
			}
		})
		h.fill("other")
		wantStatus(t, h.agent("web-1").join(), codes.FailedPrecondition, why)
		if got := h.server.States()["default/web-1"]; got.GetRefusal() != why {
			t.Errorf("state is %v, want it rejected because %s", got, why)
		}
		wantStatus(t, h.agent("web-2").join(), codes.FailedPrecondition, `dataplane "web-2" of mesh "default" is not known (yet)`)
	})
}

func TestAgentWithoutADataplaneIsShown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("other")
		a := h.agent("web-1")
		for range 3 {
			if err := a.join(); err == nil {
				t.Fatal("it has joined without a Dataplane")
			}
		}
		got := h.server.States()["default/web-1"]
		if want := `dataplane "web-1" of mesh "default" is not known (yet)`; got.GetPhase() != adminv1.AgentState_WAITING || got.GetRefusal() != want {
			t.Errorf("state is %v, want WAITING because %s", got, want)
		}
		waits := []string{"level=WARN", `msg="proxy waits for its Dataplane"`, "mesh=default", "proxy=web-1", "peer=127.0.0.1"}
		if lines := h.log.Lines(waits...); len(lines) != 1 {
			t.Errorf("%d lines about waiting, want one: %s", len(lines), lines)
		}

		h.fill("web-1")
		a.mustJoin()
		if got := h.phase(); got == adminv1.AgentState_WAITING {
			t.Error("it has joined, and still waits")
		}
		h.delete("web-1")
		if err := a.join(); err == nil {
			t.Fatal("it has joined without a Dataplane")
		}
		if lines := h.log.Lines(waits...); len(lines) != 2 {
			t.Errorf("%d lines about waiting, want two", len(lines))
		}
		h.ahead.Store(int64(2 * time.Minute))
		h.eventually("the agent that has stopped trying is forgotten", func() bool {
			return h.server.States()["default/web-1"] == nil
		})
	})
}

func TestRefusalNamesWhatWasAskedFor(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHarness(t, nil)
		h.fill("web-1", "web-2")
		stranger := h.agent("web-1")
		stranger.name = "web-2"
		for range 30 {
			if err := stranger.join(); err == nil {
				t.Fatal("it has joined with another proxy's token")
			}
		}
		lines := h.log.Lines("level=WARN", `msg="join refused"`, "mesh=default", "proxy=web-2", "peer=127.0.0.1", `not \"web-2\"`)
		if len(lines) != 30 {
			t.Errorf("%d lines for 30 rejections, want fewer by the limit of the log handler", len(lines))
		}
		old := h.agent("web-1")
		old.token = h.token(identity.Subject{Mesh: "default", Dataplane: "web-1", Path: "/workload/api"}, time.Hour)
		for range 3 {
			if err := old.join(); err == nil {
				t.Fatal("it has joined with a token of another workload")
			}
		}
		if lines := h.log.Lines(`msg="join refused"`, "proxy=web-1", `workload \"api\"`); len(lines) != 1 {
			t.Errorf("%d lines about the workload, want one: %s", len(lines), lines)
		}
		if got := h.server.States()["default/web-1"]; got.GetRefusal() == "" {
			t.Errorf("state is %v, want the reason why it cannot join", got)
		}
	})
}
