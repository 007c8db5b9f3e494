package session

import (
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Lacking returns the proxies whose agents have a session with any replica, but lack that feature.
func (s *Sessions) Lacking(feature string) []mesh.ID {
	var all []mesh.ID
	s.mu.Lock()
	for id, sess := range s.sessions {
		if !sess.has(feature) {
			all = append(all, id)
		}
	}
	s.mu.Unlock()
	for id, there := range s.allElsewhere() {
		if s.hasSession(id) {
			continue // this session is the newest
		}
		if !slices.Contains(there.Proxy.GetSession().GetFeatures(), feature) {
			all = append(all, id)
		}
	}
	return all
}

func (s *Sessions) hasSession(id mesh.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.sessions[id] != nil
}
