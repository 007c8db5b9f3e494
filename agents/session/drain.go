package session

import (
	"time"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// setDraining records in the storage whether the proxy drains, and then passes it to the view's builder. confirmDrain
// confirms a drain once the view has it.
func (s *Sessions) setDraining(sess *session, draining bool) error {
	id := sess.peer.ID()
	err := s.inTurn(sess, func() error {
		log, before := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane), s.o.Observed.Of(id).Draining
		if err := s.o.Observed.SetDraining(id, draining, sess.order); err != nil {
			return call.Internal(sess.stream.Context(), log, "write the drain record", err)
		}
		if before == draining {
			return nil
		}
		log.InfoContext(sess.stream.Context(), "proxy drains", "draining", draining)
		return nil
	})
	if err == nil && draining && sess.drainPoll == nil {
		sess.drainPoll = time.NewTicker(drainPollInterval)
	}
	return err
}

// confirmDrain confirms a recorded drain to the agent once the current view has it. A proxy without a Dataplane has no
// endpoint, so its drain is confirmed at once. Before the first view, no drain is confirmed.
func (s *Sessions) confirmDrain(sess *session) error {
	v := s.o.View()
	if v == nil {
		return nil
	}
	if _, p := v.Proxy(sess.peer.ID()); p != nil && !p.Observed.Draining {
		return nil
	}
	sess.stopDrainPoll()
	return sess.stream.Send(
		&agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainRecorded{DrainRecorded: &agentv1.DrainRecorded{}}})
}

func (sess *session) drainTick() <-chan time.Time {
	if sess.drainPoll == nil {
		return nil
	}
	return sess.drainPoll.C
}

func (sess *session) stopDrainPoll() {
	if sess.drainPoll != nil {
		sess.drainPoll.Stop()
		sess.drainPoll = nil
	}
}

// drainState returns why the proxy should get no new traffic, nil while that is unknown.
func (s *Sessions) drainState(id mesh.ID) *agentv1.ControlMessage {
	_, p := s.o.View().Proxy(id)
	if p == nil {
		return nil
	}
	now := &agentv1.DrainState{}
	if !p.Dataplane.IsPod() {
		now.Administrator = s.o.Observed.Of(id).Administrator
	} else if d := p.Dataplane.Drain; d != nil {
		now = &agentv1.DrainState{Terminating: d.Terminating, Node: d.Node, Administrator: d.Administrator,
			ServesOn: d.ServesOn}
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainState{DrainState: now}}
}
