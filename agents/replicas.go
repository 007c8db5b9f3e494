package agents

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/sonde-mesh/sonde/agents/rotation"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/replicas"
)

// The exchange with other replicas.
var _ replicas.Local = (*Server)(nil)

// Proxies implements replicas.Local.
func (s *Server) Proxies() []mesh.ID {
	all := slices.AppendSeq(slices.Concat(s.observed.Told(), s.sessions.Told()), maps.Keys(s.joins.Waiting()))
	slices.Sort(all)
	return slices.Compact(all)
}

// Proxy implements replicas.Local.
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

// Replica implements replicas.Local.
func (s *Server) Replica() *peerv1.Replica {
	m := &peerv1.Replica{}
	for _, name := range s.o.Authority.Meshes() {
		if p, err := s.o.Authority.Loaded(name); err == nil {
			m.Authorities = append(m.Authorities, rotation.Loaded(name, p))
		}
	}
	if s.o.ServingCA != nil {
		m.ServingCa = rotation.Loaded("", s.o.ServingCA.Rotation().Progress)
	}
	return m
}

// Heard implements replicas.Local.
func (s *Server) Heard(id mesh.ID) {
	s.observed.Heard(id)
	s.sessions.Heard(id)
	switch at, seen, _ := s.sessions.Ended(id); {
	case s.sessions.Replica(id) != "":
		s.joins.Joined(id, s.sessions.ProcessElsewhere(id))
		s.observed.ForgetIssued(id)
	case seen && !s.sessions.Connected(id):
		s.joins.Ended(id, at)
	}
}

// Merged implements replicas.Local.
func (s *Server) Merged(id mesh.ID) { s.settle([]mesh.ID{id}) }

// HeardReplica implements replicas.Local. It wakes Run, which advances rotations that wait for the other replica.
func (s *Server) HeardReplica() { s.sessions.WakeAll() }

// CheckDuplicate implements replicas.Local.
func (s *Server) CheckDuplicate(ctx context.Context, proxy mesh.ID, process, address string) (refusal string) {
	return s.sessions.RefuseDuplicate(ctx, proxy, process, address)
}

// Streams implements replicas.Local.
func (s *Server) Streams() map[mesh.ID][]*adminv1.Stream { return s.o.Streams() }

// Decisions implements replicas.Local.
func (s *Server) Decisions(of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart {
	if s.o.Restarts == nil {
		return nil
	}
	return s.o.Restarts.Decisions(of)
}

// settle tells the waiting replicas that the proxies here have taken over their report.
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

// wanted reports whether a lost replica's report about a proxy still matters: the proxy exists, and no other replica
// has a newer report.
func (s *Server) wanted(said facts.Said) bool {
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
	return !facts.Superseded(said.Proxy, others)
}
