package agents

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/agents/rotation"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Run rechecks rotations and records regularly until ctx ends. Then it ends all sessions, and waits for their handlers.
func (s *Server) Run(ctx context.Context) error {
	ticker := time.NewTicker(recheckInterval)
	defer ticker.Stop()
	var servingCA <-chan struct{}
	if s.o.ServingCA != nil {
		servingCA = s.o.ServingCA.Changed()
	}
	for {
		s.o.Loop.Begin()
		s.recheck(ctx)
		s.o.Loop.End()
		select {
		case <-ctx.Done():
			s.sessions.Stop()
			return nil
		case <-servingCA:
			s.o.Peers.ChangedReplica()
			s.sessions.WakeAll()
		case <-ticker.C:
		}
	}
}

// recheck removes expired records, and advances rotations that waited for their expiry.
func (s *Server) recheck(ctx context.Context) {
	s.joins.Sweep()
	s.observed.ObserveExpiry()
	if s.mayForget() {
		s.sessions.ForgetEnded()
		s.observed.Forget(ctx, s.sessions)
		s.o.Peers.Sweep(s.wanted)
	}
	s.sessions.WakeAwaiting()
	for _, name := range s.o.Authority.Meshes() {
		s.o.Loop.Beat() // each rotation may wait for the storage
		s.rotations.Mesh(name).Advance(ctx)
	}
	if s.o.ServingCA != nil {
		s.o.Loop.Beat()
		if err := s.o.ServingCA.CatchUp(ctx); err != nil && ctx.Err() == nil {
			s.o.Logger.ErrorContext(ctx, "failed to write copies of the serving CA", "err", err)
		}
		s.rotations.ForgetMissed(ctx)
		s.rotations.Serving().Advance(ctx)
	}
}

// Changed handles a change whose After is the current view. It asks agents whose certificate names another workload
// than the Dataplane to renew it, ends the sessions of earlier proxies of the same name, and sends agents the changed
// state.
func (s *Server) Changed(c meshview.Change) {
	ctx := context.Background()
	for _, id := range c.Proxies {
		if _, p := c.After.Proxy(id); p == nil {
			s.observed.Gone(id)
		} else {
			now := identity.SubjectOf(p.Dataplane)
			s.observed.Replaced(ctx, now, s.sessions.ReplaceInstance(now))
			s.observed.Heard(id) // reports about this instance may have come before the view had it
			reports, session := s.sessions.MayReport(id)
			if s.observed.Follow(c.Before.Dataplane(id), p.Dataplane, reports, session) {
				s.sessions.AskAgain(id)
			}
		}
		s.observed.CheckWorkload(ctx, id)
		s.sessions.Wake(id)
	}
	for _, id := range c.Observed {
		if _, p := c.After.Proxy(id); !p.Dataplane.IsPod() {
			s.sessions.Wake(id)
		}
	}
	s.settle(slices.Concat(c.Proxies, c.Observed))
}

// Followed handles another replica's change of a mesh's CA: it tells the agents, and the other replicas that this one
// has loaded it.
func (s *Server) Followed(meshName string) {
	s.o.Peers.ChangedReplica()
	s.sessions.WakeMesh(meshName)
	s.rotations.Mesh(meshName).Advance(context.Background())
}

// Publishing records that a change of the health of these proxies' inbounds is on its way to other proxies. Until taken
// is called, it tells the agents that other proxies lack the change. Call Publishing before the view with the change
// becomes current.
func (s *Server) Publishing(proxies []mesh.ID) (taken func()) {
	done := s.sessions.Publishing(proxies)
	return func() {
		done()
		s.settle(proxies)
	}
}

// ObserveListeners records which listeners a proxy's Envoy has accepted and rejected, and wakes its session without
// waiting for the agent.
func (s *Server) ObserveListeners(id mesh.ID, l observed.Listeners) {
	s.observed.ObserveListeners(id, l)
	s.sessions.Wake(id)
}

// SetDrained calls observed.State.SetDrained, and tells the agent.
func (s *Server) SetDrained(ctx context.Context, p *meshview.Proxy, reason *string) (before string, err error) {
	defer s.sessions.Wake(p.ID())
	return s.observed.SetDrained(ctx, p, reason)
}

// Rotations returns the rotations of certificate authorities.
func (s *Server) Rotations() *rotation.Rotations { return s.rotations }

// Query asks the Envoy of a proxy for a view, see session.Sessions.
func (s *Server) Query(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error {
	if replica := s.sessions.Replica(proxy); replica != "" {
		return s.o.Peers.Query(ctx, replica, proxy, view, take)
	}
	return s.sessions.Query(ctx, proxy, view, take)
}

// Agents returns the agents that have a session.
func (s *Server) Agents() map[mesh.ID]*adminv1.Agent { return s.sessions.Agents() }

// NotServing returns why applications of a proxy cannot take traffic, by the inbound's address, for display. The caller
// must not change the result.
func (s *Server) NotServing(id mesh.ID) map[netip.AddrPort]string { return s.observed.NotServing(id) }

// PodLiveness returns the reports of guarded liveness probes of all replicas, by proxy. The caller must not change it.
func (s *Server) PodLiveness() map[mesh.ID]agentv1.ReportedLiveness {
	return s.observed.PodLiveness()
}

// Lacking returns the proxies whose agents have a session with any replica, but lack that feature.
func (s *Server) Lacking(feature string) []mesh.ID { return s.sessions.Lacking(feature) }

// WakeRestarts makes the session of a proxy, if it is here, send the current state of Options.Restarts.
func (s *Server) WakeRestarts(id mesh.ID) { s.sessions.Wake(id) }

// RefusedListeners returns why a proxy's Envoy rejects listeners, by their address, for display. The caller must not
// change the result.
func (s *Server) RefusedListeners(id mesh.ID) map[netip.AddrPort]string {
	return s.observed.RefusedListeners(id)
}
