package agents

import (
	"context"
	"net/netip"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/agents/observed"
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

// recheck forgets what has expired, and advances rotations that waited for it.
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
		s.o.Loop.Beat() // each of them may wait for the storage
		s.rotations.Mesh(name).Advance(ctx)
	}
	if s.o.ServingCA != nil {
		s.o.Loop.Beat()
		if err := s.o.ServingCA.CatchUp(ctx); err != nil && ctx.Err() == nil {
			s.o.Logger.ErrorContext(ctx, "copies of the serving CA not written", "err", err)
		}
		s.rotations.ForgetMissed(ctx)
		s.rotations.Serving().Advance(ctx)
	}
}

// Changed tells the server that the view of a change is the current one. Agents whose certificate names another workload
// than the Dataplane does now are asked to renew it, those of an earlier proxy of the same name lose their session, and all learn what
// they should know of the new view.
func (s *Server) Changed(c meshview.Change) {
	ctx := context.Background()
	for _, id := range c.Proxies {
		if _, p := c.After.Proxy(id); p == nil {
			s.observed.Gone(id)
		} else {
			now := identity.SubjectOf(p.Dataplane)
			s.observed.Replaced(ctx, now, s.sessions.ReplaceInstance(now))
			s.observed.Heard(id) // of this instance, which may have been said before it was known here
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

// Followed tells the server that another replica has changed the CA of a mesh: agents are told, and the other replicas that this one has
// loaded it.
func (s *Server) Followed(meshName string) {
	s.o.Peers.ChangedReplica()
	s.sessions.WakeMesh(meshName)
	s.rotations.Mesh(meshName).Advance(context.Background())
}

// Publishing says that a change of the health of these proxies' inbounds is on its way to other proxies. Until the function is called that it
// returns, their agents are not told that others know of it. The view of the change may only be the current one once Publishing has returned.
func (s *Server) Publishing(proxies []mesh.ID) (taken func()) {
	done := s.sessions.Publishing(proxies)
	return func() {
		done()
		s.settle(proxies)
	}
}

// ObserveListeners records what the Envoy of a proxy has answered, and lets its agent know. It does not wait for the agent.
func (s *Server) ObserveListeners(id mesh.ID, l observed.Listeners) {
	s.observed.ObserveListeners(id, l)
	s.sessions.Wake(id)
}

// SetDrained is that of observed.State, and lets the agent know.
func (s *Server) SetDrained(ctx context.Context, p *meshview.Proxy, reason *string) (before string, err error) {
	defer s.sessions.Wake(p.ID())
	return s.observed.SetDrained(ctx, p, reason)
}

// Rotate starts a rotation of a mesh's CA, see rotation.Rotation.
func (s *Server) Rotate(ctx context.Context, meshName string, force bool) (*adminv1.Rotation, error) {
	return s.rotations.Mesh(meshName).Rotate(ctx, force, false)
}

// Rotation returns the progress of a rotation, and changes nothing.
func (s *Server) Rotation(ctx context.Context, meshName string) (*adminv1.Rotation, error) {
	return s.rotations.Mesh(meshName).Progress(ctx)
}

// RotateServing starts a rotation of the serving CA, see rotation.Rotation.
func (s *Server) RotateServing(ctx context.Context, force, proceed bool) (*adminv1.Rotation, error) {
	return s.rotations.Serving().Rotate(ctx, force, proceed)
}

// ServingRotation returns the progress of the rotation of the serving CA, and changes nothing.
func (s *Server) ServingRotation(ctx context.Context) (*adminv1.Rotation, error) {
	return s.rotations.Serving().Progress(ctx)
}

// Query asks the Envoy of a proxy for a view, see session.Sessions.
func (s *Server) Query(ctx context.Context, proxy mesh.ID, view mesh.EnvoyView, take func([]byte) error) error {
	if replica := s.sessions.Replica(proxy); replica != "" {
		return s.o.Peers.Query(ctx, replica, proxy, view, take)
	}
	return s.sessions.Query(ctx, proxy, view, take)
}

// Agents returns the agents that have a session.
func (s *Server) Agents() map[mesh.ID]*adminv1.Agent { return s.sessions.Agents() }

// NotServing returns, to be shown, why applications of a proxy cannot take traffic, by the address of the inbound. The result must not be
// changed.
func (s *Server) NotServing(id mesh.ID) map[netip.AddrPort]string { return s.observed.NotServing(id) }

// PodLiveness returns what is known by all replicas of guarded liveness probes, by proxy. It must not be changed.
func (s *Server) PodLiveness() map[mesh.ID]agentv1.ReportedLiveness {
	return s.observed.PodLiveness()
}

// Lacking returns the proxies whose agents have a session, with any replica, and not that feature.
func (s *Server) Lacking(feature string) []mesh.ID { return s.sessions.Lacking(feature) }

// WakeRestarts makes the session of a proxy, if it is here, send what Options.Restarts says now.
func (s *Server) WakeRestarts(id mesh.ID) { s.sessions.Wake(id) }

// RefusedListeners returns, to be shown, why the Envoy of a proxy refuses listeners, by their address. The result must not be
// changed.
func (s *Server) RefusedListeners(id mesh.ID) map[netip.AddrPort]string {
	return s.observed.RefusedListeners(id)
}
