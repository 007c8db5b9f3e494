package agents

import (
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxUnforgotten is of how many proxies something may be known while nothing is forgotten: half of what other replicas take from one. Proxies come and
// go meanwhile, in a mesh that may be frozen for hours.
const maxUnforgotten = 10_000

// mayForget reports whether proxies that seem to be gone may be forgotten.
func (s *Server) mayForget() bool {
	return s.o.Frozen() == "" || len(s.Proxies()) > maxUnforgotten
}

// Connected reports whether the agent of a proxy has a session, with any replica.
func (s *Server) Connected(id mesh.ID) bool { return s.sessions.Connected(id) }

// LastSeen returns when the last session of a proxy without one has ended, or this process began, and false for a proxy that has not joined.
func (s *Server) LastSeen(id mesh.ID) (time.Time, bool) {
	if !s.observed.Of(id).Joined {
		return time.Time{}, false
	}
	at, _, _ := s.sessions.Ended(id)
	return at, true
}
