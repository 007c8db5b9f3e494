package agents

import (
	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// featureDrainState says that this control plane sends DrainState.
const featureDrainState = "drain-state"

// drainState returns why the proxy should get no new traffic, nil if that is not known: what its agent was told then holds.
func (s *Server) drainState(id mesh.ID) *agentv1.DrainState {
	_, p := s.o.View().Proxy(id)
	if p == nil {
		return nil
	}
	if !p.Dataplane.IsPod() {
		return &agentv1.DrainState{Administrator: s.observed.of(id).Administrator}
	}
	d := p.Dataplane.Drain
	if d == nil {
		return &agentv1.DrainState{}
	}
	return &agentv1.DrainState{Terminating: d.Terminating, Node: d.Node, Administrator: d.Administrator, ServesOn: d.ServesOn}
}

// pushDrainState sends why the proxy should get no new traffic, if it has not been sent.
func (s *Server) pushDrainState(sess *session) error {
	now := s.drainState(sess.peer.ID())
	if now == nil || sess.pushedDrain != nil && proto.Equal(now, sess.pushedDrain) {
		return nil
	}
	sess.pushedDrain = now
	return sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainState{DrainState: now}})
}
