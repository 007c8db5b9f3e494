package session

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// envoyChanged records why a proxy's Envoy is not running, until the session ends.
func (s *Sessions) envoyChanged(sess *session, m *agentv1.EnvoyState) {
	down := cut.Text(m.GetDown(), agentv1.MaxReason)
	s.mu.Lock()
	sess.envoyDown = down
	s.mu.Unlock()
	s.o.Peers.Changed(sess.peer.ID())
	log := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane)
	if down == "" {
		log.InfoContext(sess.stream.Context(), "envoy of a proxy is running again")
		return
	}
	log.WarnContext(sess.stream.Context(), "envoy of a proxy is not running", "reason", down)
}
