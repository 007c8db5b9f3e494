package session

import (
	"github.com/sonde-mesh/sonde/identity"
)

// ReplaceInstance ends the session of an earlier proxy of the same name. It returns whether there was one.
func (s *Sessions) ReplaceInstance(now identity.Subject) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[now.ID()]
	if sess == nil || sess.peer.Instance == now.Instance {
		return false
	}
	sess.replace()
	return true
}
