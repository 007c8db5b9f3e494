package agents_test

import (
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// hello sends a Hello with the name of the process.
func (a *agent) hello(instance string, draining bool) {
	a.h.t.Helper()
	a.open()
	a.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Hello{Hello: &agentv1.Hello{
		Features: a.features, InUse: a.inUse(), Draining: draining, Instance: instance,
	}}})
}

// TestWhoGetsTheSession checks which of two processes keeps the session.
func TestWhoGetsTheSession(t *testing.T) {
	tests := map[string]struct {
		first, second string // instances
		features      []string
		draining      bool // the first process drains
		dead          bool // the first process does not answer
		stays         bool // the first process keeps the session
	}{
		"another process":                       {first: "a", second: "b", features: []string{"pong"}, stays: true},
		"the same one, again":                   {first: "a", second: "a", features: []string{"pong"}},
		"the first one does not answer":         {first: "a", second: "b", features: []string{"pong"}, dead: true},
		"the first one drains":                  {first: "a", second: "b", features: []string{"pong"}, draining: true},
		"the first one is of a release before":  {first: "", second: "b"},
		"the second one is of a release before": {first: "a", second: "", features: []string{"pong"}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h, first := joined(t, nil)
			first.features = tc.features
			second := *first
			first.hello(tc.first, tc.draining)
			if first.receive().GetWelcome() == nil {
				t.Fatal("the first agent gets no Welcome")
			}
			h.eventually("the session is known", func() bool { return len(h.server.Agents()) == 1 })
			second.hello(tc.second, false)
			if tc.stays || tc.dead {
				if first.receive().GetPing() == nil {
					t.Fatal("the first agent gets no ping")
				}
			}
			if !tc.stays {
				if second.receive().GetWelcome() == nil {
					t.Error("the second agent gets no Welcome")
				}
				wantStatus(t, first.ending(), codes.Aborted, "has taken over")
				return
			}
			first.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}})
			wantStatus(t, second.ending(), codes.AlreadyExists, "duplicate: another agent with this name")
			if d := first.receive().GetDuplicate(); d.GetAddress() != "127.0.0.1" {
				t.Errorf("the first agent gets %v", d)
			}
			if text := h.server.States()["default/web-1"].GetRefusal(); text == "" {
				t.Error("the admin API does not show it")
			}
			// A third process joins with its token, and is rejected before it has a certificate.
			third := h.agent("web-1")
			joins := make(chan error, 1)
			go func() { joins <- third.joinAs("c") }()
			if first.receive().GetPing() == nil {
				t.Fatal("the first agent gets no second ping")
			}
			first.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}})
			wantStatus(t, <-joins, codes.AlreadyExists, "duplicate")
		})
	}
}

// TestRefusalGoesWithTheSession rejects a second agent, which then exits. When the first agent is killed, the control
// plane shows only its loss, and no longer the rejection.
func TestRefusalGoesWithTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, first := joined(t, nil)
		first.features = []string{agentv1.FeaturePong}
		second := *first
		first.hello("a", false)
		h.eventually("the session is known", func() bool { return len(h.server.Agents()) == 1 })
		second.hello("b", false)
		for m := first.receive(); m.GetPing() == nil; m = first.receive() {
		}
		first.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}})
		wantStatus(t, second.ending(), codes.AlreadyExists, "duplicate")
		if s := h.server.States()["default/web-1"]; s.GetPhase() != adminv1.AgentState_CONNECTED || s.GetRefusal() == "" {
			t.Errorf("with two agents the state is %v, want CONNECTED, with the reason of the rejection", s)
		}
		second.leave()
		first.leave()
		if s := h.server.States()["default/web-1"]; s.GetPhase() != adminv1.AgentState_RECONNECTING || s.GetRefusal() != "" {
			t.Errorf("without any agent the state is %v, want RECONNECTING alone", s)
		}
		h.ahead.Store(int64(30 * time.Second))
		if s := h.server.States()["default/web-1"]; s.GetPhase() != adminv1.AgentState_LOST || s.GetRefusal() != "" || h.metric("sonde_agents_lost", "default") != 1 {
			t.Errorf("30 s later the state is %v, want LOST alone", s)
		}
	})
}

// TestRefusedAgentGetsTheSession checks that the second agent gets the session after the first one has ended.
func TestRefusedAgentGetsTheSession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, first := joined(t, nil)
		first.features = []string{agentv1.FeaturePong}
		second := *first
		first.hello("a", false)
		h.eventually("the session is known", func() bool { return len(h.server.Agents()) == 1 })
		second.hello("b", false)
		for m := first.receive(); m.GetPing() == nil; m = first.receive() {
		}
		first.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Draining{Draining: &agentv1.Draining{}}})
		first.send(&agentv1.AgentMessage{Message: &agentv1.AgentMessage_Pong{Pong: &agentv1.Pong{}}})
		wantStatus(t, second.ending(), codes.AlreadyExists, "duplicate")
		second.leave()
		third := *first // the second process again, while the first one drains
		third.hello("b", false)
		if third.receive().GetWelcome() == nil {
			t.Fatal("it gets no Welcome")
		}
		synctest.Wait()
		if s := h.server.States()["default/web-1"]; s.GetPhase() != adminv1.AgentState_CONNECTED || s.GetRefusal() != "" {
			t.Errorf("the state is %v, want CONNECTED alone", s)
		}
	})
}

func TestInstanceIsShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, a := joined(t, nil)
		a.hello(string(make([]byte, 65)), false)
		wantStatus(t, a.ending(), codes.InvalidArgument, "instance")
	})
}
