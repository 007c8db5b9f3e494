package agents

import (
	"context"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Plaintext returns observed.State.PlaintextOf.
func (s *Server) Plaintext(meshName string) (proxies map[mesh.ID]observed.ProxyPlaintext, past []observed.PastPlaintext,
	since time.Time) {
	return s.observed.PlaintextOf(meshName)
}

// RefreshPlaintext asks the agents of these meshes, at all replicas, for their current counts, which later calls of
// Plaintext return. It returns the proxies that answered.
func (s *Server) RefreshPlaintext(ctx context.Context, meshes []string) map[mesh.ID]bool {
	var elsewhere []*peerv1.Proxy
	var asking sync.WaitGroup
	asking.Go(func() { elsewhere = s.o.Peers.AskPlaintext(ctx, meshes) })
	answered := map[mesh.ID]bool{}
	for _, id := range s.sessions.AskPlaintext(ctx, meshes) {
		answered[id] = true
	}
	asking.Wait()
	for _, p := range elsewhere {
		if s.observed.HearPlaintext(p) {
			answered[p.GetId()] = true
		}
	}
	return answered
}

// AskPlaintext implements replicas.Local.
func (s *Server) AskPlaintext(ctx context.Context, meshes []string) []*peerv1.Proxy {
	var all []*peerv1.Proxy
	for _, id := range s.sessions.AskPlaintext(ctx, meshes) {
		d := s.o.View().Dataplane(id)
		if d == nil {
			continue
		}
		if m := (&peerv1.Proxy{Id: id, Instance: d.Identity.Instance}); s.observed.Facts().Plaintext.Tell(id, m) {
			all = append(all, m)
		}
	}
	return all
}
