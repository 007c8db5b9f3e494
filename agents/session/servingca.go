package session

import (
	"slices"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// pushServingCA sends the control plane's CAs to an agent that accepts them and uses older ones. If the agent's are
// newer, it got them from a replica that is ahead.
func (s *Sessions) pushServingCA(sess *session) error {
	if s.o.ServingCA == nil || !sess.has(agentv1.FeatureServingCA) {
		return nil
	}
	s.mu.Lock()
	use := sess.inUse
	s.mu.Unlock()
	now := s.o.ServingCA()
	p := push{now.ID, use.GetServingCaId()}
	if use.GetServingCaId() == now.ID || use.GetServingCaEpoch() > now.Epoch || sess.pushedServingCA == p {
		return nil
	}
	sess.pushedServingCA = p
	return sess.stream.Send(
		&agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServingCa{ServingCa: call.Bundle(now)}})
}

// TakesServingCA reports whether the proxy's agent has a session with any replica, and accepts the control plane's CAs.
func (s *Sessions) TakesServingCA(id mesh.ID) bool {
	s.mu.Lock()
	sess := s.sessions[id]
	s.mu.Unlock()
	if sess != nil {
		return sess.has(agentv1.FeatureServingCA)
	}
	there, open := s.elsewhere(id)
	return open && slices.Contains(there.Proxy.GetSession().GetFeatures(), agentv1.FeatureServingCA)
}
