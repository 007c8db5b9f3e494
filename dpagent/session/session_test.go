package session

import (
	"errors"
	"io"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// stream receives the given messages of a control plane, and then ends.
type stream struct {
	agentv1.AgentService_SessionClient
	messages []*agentv1.ControlMessage
}

func (s *stream) Recv() (*agentv1.ControlMessage, error) {
	if len(s.messages) == 0 {
		return nil, io.EOF
	}
	m := s.messages[0]
	s.messages = s.messages[1:]
	return m, nil
}

func welcome(features ...string) *agentv1.ControlMessage {
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Welcome{Welcome: &agentv1.Welcome{Features: features}}}
}

func drainState(d *agentv1.DrainState) *agentv1.ControlMessage {
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainState{DrainState: d}}
}

// newSession returns a session for tests of the drain.
func newSession(drain func(mesh.Drain), loop *heartbeat.Loop) *Session {
	return New(Options{
		Inbounds: func(error) {}, Endpoints: func(error) {}, Outbounds: func(error) {}, Probes: func(*agentv1.Probes) {}, ServiceProbes: func(*agentv1.ServiceProbes) {}, Drain: drain, Loop: loop,
		Refused: func(error) {}, Duplicate: func(string) {},
		Logger: slog.New(slog.DiscardHandler), Registerer: prometheus.NewRegistry(),
	})
}

func TestDrainStates(t *testing.T) {
	all := &agentv1.DrainState{Terminating: true, Node: "a", Administrator: "b", ServesOn: "c"}
	tests := map[string]struct {
		messages []*agentv1.ControlMessage
		want     []mesh.Drain
	}{
		"without a message, the last state stays": {[]*agentv1.ControlMessage{welcome(agentv1.FeatureDrainState)}, nil},
		"a state": {
			[]*agentv1.ControlMessage{welcome(agentv1.FeatureDrainState), drainState(all)},
			[]mesh.Drain{{Terminating: true, Node: "a", Administrator: "b", ServesOn: "c"}},
		},
		"a state, and its reversal": {
			[]*agentv1.ControlMessage{welcome("other", agentv1.FeatureDrainState), drainState(&agentv1.DrainState{Node: "a"}), drainState(&agentv1.DrainState{})},
			[]mesh.Drain{{Node: "a"}, {}},
		},
		"a message of nothing":         {[]*agentv1.ControlMessage{welcome(agentv1.FeatureDrainState), drainState(nil)}, []mesh.Drain{{}}},
		"one that could withdraw none": {[]*agentv1.ControlMessage{welcome("inbounds")}, []mesh.Drain{{}}},
		"an unknown message":           {[]*agentv1.ControlMessage{welcome(agentv1.FeatureDrainState), {}}, nil},
		"a state before the welcome":   {[]*agentv1.ControlMessage{drainState(all)}, []mesh.Drain{{Terminating: true, Node: "a", Administrator: "b", ServesOn: "c"}}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []mesh.Drain
			s := newSession(func(d mesh.Drain) { got = append(got, d) }, nil)
			_ = s.receive(&stream{messages: tc.messages}, func([]string) {}) // it returns the end of the stream
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

// TestStuckMessage handles a message for too long, which the loop must detect. A waiting session is not stuck.
func TestStuckMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 30 * time.Second
		loop := heartbeat.New("session", limit)
		release, done := make(chan struct{}), make(chan struct{})
		s := newSession(func(mesh.Drain) { <-release }, loop)
		go func() {
			defer close(done)
			_ = s.receive(&stream{messages: []*agentv1.ControlMessage{drainState(nil)}}, func([]string) {}) // as above
		}()
		<-time.After(limit + time.Second)
		if err := loop.Check(); err == nil {
			t.Error("the stuck session is not detected")
		}
		close(release)
		<-done
		<-time.After(time.Hour)
		if err := loop.Check(); err != nil {
			t.Errorf("a session that waits: %v", err)
		}
	})
}

func TestEndpoints(t *testing.T) {
	endpoints := func(ready bool, reason string) *agentv1.ControlMessage {
		return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Endpoints{Endpoints: &agentv1.Endpoints{Ready: ready, Reason: reason}}}
	}
	tests := map[string]struct {
		messages []*agentv1.ControlMessage
		want     []string
	}{
		"without a message, the last state stays": {[]*agentv1.ControlMessage{welcome(agentv1.FeatureEndpoints)}, nil},
		"not ready, then ready":                   {[]*agentv1.ControlMessage{welcome(agentv1.FeatureEndpoints), endpoints(false, "why"), endpoints(true, "")}, []string{"why", "ready"}},
		"a control plane that never reports it":   {[]*agentv1.ControlMessage{welcome("inbounds")}, []string{"ready"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			var got []string
			s := newSession(func(mesh.Drain) {}, nil)
			s.o.Endpoints = func(err error) {
				if err == nil {
					err = errors.New("ready")
				}
				got = append(got, err.Error())
			}
			_ = s.receive(&stream{messages: tc.messages}, func([]string) {}) // it returns the end of the stream
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
		})
	}
}

// TestOutboundsOfAnOlderControlPlane checks that outbounds count as accepted if the control plane never reports them.
func TestOutboundsOfAnOlderControlPlane(t *testing.T) {
	for name, tc := range map[string]struct {
		features []string
		told     int
	}{
		"it reports them":       {[]string{agentv1.FeatureOutbounds}, 0},
		"it never reports them": {nil, 1},
	} {
		t.Run(name, func(t *testing.T) {
			told := 0
			s := newSession(func(mesh.Drain) {}, nil)
			s.o.Outbounds = func(err error) {
				if told++; err != nil {
					t.Errorf("reported %v", err)
				}
			}
			_ = s.receive(&stream{messages: []*agentv1.ControlMessage{welcome(tc.features...)}}, func([]string) {}) // as above
			if told != tc.told {
				t.Errorf("reported %d times, want %d", told, tc.told)
			}
		})
	}
}
