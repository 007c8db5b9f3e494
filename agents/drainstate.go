package agents

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// drainState returns why the proxy should get no new traffic, nil if that is not known.
func (s *Server) drainState(id mesh.ID) *agentv1.ControlMessage {
	_, p := s.o.View().Proxy(id)
	if p == nil {
		return nil
	}
	now := &agentv1.DrainState{}
	if !p.Dataplane.IsPod() {
		now.Administrator = s.observed.of(id).Administrator
	} else if d := p.Dataplane.Drain; d != nil {
		now = &agentv1.DrainState{Terminating: d.Terminating, Node: d.Node, Administrator: d.Administrator, ServesOn: d.ServesOn}
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_DrainState{DrainState: now}}
}
