package agents

import (
	"context"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/agents/rotation"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/peers"
)

// What other replicas are told, and what is done with what they say.
var _ peers.Local = (*Server)(nil)

// Proxies implements peers.Local.
func (s *Server) Proxies() []mesh.ID {
	seen := map[mesh.ID]bool{}
	var all []mesh.ID
	add := func(id mesh.ID) {
		if !seen[id] {
			seen[id] = true
			all = append(all, id)
		}
	}
	for _, id := range s.observed.Told() {
		add(id)
	}
	for _, id := range s.sessions.Told() {
		add(id)
	}
	for id := range s.joins.Waiting() {
		add(id)
	}
	return all
}

// Proxy implements peers.Local.
func (s *Server) Proxy(id mesh.ID) *peerv1.Proxy {
	m := &peerv1.Proxy{Id: id}
	if d := s.o.View().Dataplane(id); d != nil {
		m.Instance = d.Identity.Instance
	}
	known := s.observed.Tell(id, m)
	known = s.sessions.Tell(id, m) || known
	if w, waits := s.joins.Wait(id); waits {
		m.Waiting, known = &peerv1.Waiting{Since: timestamppb.New(w.Since), Reason: w.Reason}, true
	}
	if !known {
		return nil
	}
	return m
}

// Replica implements peers.Local.
func (s *Server) Replica() *peerv1.Replica {
	m := &peerv1.Replica{}
	for _, name := range s.o.Authority.Meshes() {
		if a, err := s.o.Authority.Loaded(name); err == nil {
			m.Authorities = append(m.Authorities, &peerv1.Authority{Mesh: name, BundleEpoch: a.Epoch, Step: string(a.Step), SigningCa: a.SigningCA})
		}
	}
	if s.o.ServingCA != nil {
		m.ServingCa = rotation.ServingLoaded(s.o.ServingCA)
	}
	return m
}

// Heard implements peers.Local.
func (s *Server) Heard(id mesh.ID) {
	s.observed.Heard(id)
	s.sessions.Heard(id)
	if s.sessions.Replica(id) != "" {
		s.joins.Joined(id)
		s.observed.ForgetIssued(id)
	}
}

// Merged implements peers.Local.
func (s *Server) Merged(id mesh.ID) { s.settle([]mesh.ID{id}) }

// HeardReplica implements peers.Local. Run advances the rotations that wait for it.
func (s *Server) HeardReplica() { s.sessions.WakeAll() }

// CheckDuplicate implements peers.Local.
func (s *Server) CheckDuplicate(ctx context.Context, proxy mesh.ID, process, address string) (refusal string) {
	return s.sessions.RefuseDuplicate(ctx, proxy, process, address)
}

// Streams implements peers.Local.
func (s *Server) Streams() map[mesh.ID][]*adminv1.Stream { return s.o.Streams() }

// Decisions implements peers.Local.
func (s *Server) Decisions(of peers.DecisionFilter) peers.Decisions { return s.o.Decisions(of) }

// settle tells the replicas that wait for it that proxies here have what was heard.
func (s *Server) settle(proxies []mesh.ID) {
	if s.o.Peers == nil {
		return
	}
	for _, id := range proxies {
		if s.sessions.Settled(id) {
			s.o.Peers.Taken(id)
		}
	}
}

// wanted reports whether what a lost replica has said of a proxy still says something: the proxy is there, and has not spoken elsewhere.
func (s *Server) wanted(said peers.Said) bool {
	id := said.Proxy.GetId()
	if s.o.View() == nil {
		return true
	}
	d := s.o.View().Dataplane(id)
	if d == nil || d.Identity.Instance != said.Proxy.GetInstance() {
		return false
	}
	others := []*peerv1.Proxy{s.Proxy(id)}
	for _, other := range s.o.Peers.Heard(id) {
		others = append(others, other.Proxy)
	}
	// superseded reports whether another one has said a newer part, or it has said none.
	superseded := func(part func(*peerv1.Proxy) *peerv1.Order) bool {
		order := part(said.Proxy)
		return order == nil || slices.ContainsFunc(others, func(other *peerv1.Proxy) bool {
			return part(other) != nil && observed.OrderOf(part(other)).Compare(observed.OrderOf(order)) > 0
		})
	}
	return !superseded(func(m *peerv1.Proxy) *peerv1.Order { return m.GetSession().GetOrder() }) ||
		!superseded(func(m *peerv1.Proxy) *peerv1.Order { return m.GetApplications().GetOrder() }) ||
		!superseded(func(m *peerv1.Proxy) *peerv1.Order { return m.GetLiveness().GetOrder() }) ||
		!superseded(func(m *peerv1.Proxy) *peerv1.Order { return m.GetPlaintext().GetOrder() }) ||
		!superseded(func(m *peerv1.Proxy) *peerv1.Order { return m.GetListeners().GetOrder() })
}
