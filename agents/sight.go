package agents

import (
	"context"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxUnforgotten bounds the proxies with records while nothing is forgotten: half of what other replicas accept from
// one. Proxies come and go even while a mesh is frozen for hours.
const maxUnforgotten = 10_000

// mayForget reports whether records of removed proxies may be dropped.
func (s *Server) mayForget() bool {
	return s.o.Frozen() == "" || len(s.Proxies()) > maxUnforgotten
}

// Connected reports whether the agent of a proxy has a session, with any replica.
func (s *Server) Connected(id mesh.ID) bool { return s.sessions.Connected(id) }

// Unresponsive pings the agents of a mesh ("" for all) at all replicas. It returns the proxies whose agents did not
// answer within 2 s, and the names of the replicas that did not answer.
func (s *Server) Unresponsive(ctx context.Context, meshName string) (unresponsive map[mesh.ID]bool, missing []string) {
	var elsewhere []mesh.ID
	var asking sync.WaitGroup
	asking.Go(func() { elsewhere, missing = s.o.Peers.ListUnresponsive(ctx, meshName) })
	unresponsive = map[mesh.ID]bool{}
	for _, id := range s.sessions.Unresponsive(ctx, meshName) {
		unresponsive[id] = true
	}
	asking.Wait()
	for _, id := range elsewhere {
		if s.sessions.Replica(id) != "" { // the session has not moved to this replica meanwhile
			unresponsive[id] = true
		}
	}
	return unresponsive, missing
}

// ListUnresponsive implements replicas.Local.
func (s *Server) ListUnresponsive(ctx context.Context, meshName string) []mesh.ID {
	return s.sessions.Unresponsive(ctx, meshName)
}

// LastSeen returns when the last session of a disconnected proxy ended, or this process began, and false for a proxy
// that has not joined.
func (s *Server) LastSeen(id mesh.ID) (time.Time, bool) {
	if !s.observed.Of(id).Joined {
		return time.Time{}, false
	}
	at, _, _ := s.sessions.Ended(id)
	return at, true
}
