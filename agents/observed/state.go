// Package observed records this replica's observations of each proxy: whether it has joined, with which identity,
// whether it drains, which listeners its Envoy has accepted, whether its applications can take traffic, and which
// guarded liveness probes fail. Package facts merges them with the reports of other replicas.
package observed

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/replicas"
)

// Options of a State. All are required but Storage and Held.
type Options struct {
	// Authority has the certificates of proxies that have joined.
	Authority *identity.Authority
	// Storage keeps which proxies drain, and which are not ready yet. Default: in memory only, which is enough if
	// another source, such as Kubernetes, decides which endpoints get traffic.
	Storage facts.Storage
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// Observe passes the whole Observation of a proxy to the view's builder, and returns at once. It must not call the
	// State.
	Observe func(proxy mesh.ID, o mesh.Observation)
	// Held is called for proxies whose PodLiveness has changed. It must return at once, and must not call the State.
	// Default: no call.
	Held func(proxy mesh.ID)
	// Peers are the other replicas; may be nil.
	Peers  *replicas.Peers
	Logger *slog.Logger
	Now    func() time.Time
}

// State has the observations of all proxies. Every replica builds the whole view, and so needs all observations that
// decide about an endpoint, but an agent and its Envoy talk to one replica. Each field says whether it is shared.
type State struct {
	o     Options
	facts *facts.Facts
	// identities serializes ObserveIdentity. Local to this replica.
	identities sync.Mutex
	// drains has the proxies that drain, drained the proxies that administrators drain, with the reason.
	// unacceptedRecords has the joined proxies whose Envoy has never accepted a listener: without it, a restart of the
	// control plane would make their endpoints ready. With several replicas there is no storage.
	drains, drained, unacceptedRecords facts.Directory
	// drainedLock serializes changes of drained.
	drainedLock sync.Mutex
	plaintexts  plaintexts

	mu sync.Mutex
	// streams has the start of the ADS stream that last reported the listeners of a proxy. Local to this replica.
	streams map[mesh.ID]time.Time
	// issued has the certificates of proxies that joined here, until they have a session. Shared with other replicas.
	issued map[mesh.ID]*peerv1.Certificate
	// unaccepted are the proxies in unacceptedRecords.
	unaccepted map[mesh.ID]bool
	// mismatches are the mismatches that were logged, see CheckWorkload. Local to this replica, which logs each once.
	mismatches map[mesh.ID]Mismatch
}

// New returns a State. It passes the records of earlier runs to Observe, so that the first view has them.
func New(o Options) (*State, error) {
	if o.Held == nil {
		o.Held = func(mesh.ID) {}
	}
	s := &State{
		o:                 o,
		drains:            facts.Directory{Name: "draining", Storage: o.Storage},
		drained:           facts.Directory{Name: "drained", Storage: o.Storage},
		unacceptedRecords: facts.Directory{Name: "unaccepted", Storage: o.Storage},
		plaintexts:        newPlaintexts(o.Now()),
		streams:           map[mesh.ID]time.Time{},
		issued:            map[mesh.ID]*peerv1.Certificate{},
		unaccepted:        map[mesh.ID]bool{},
		mismatches:        map[mesh.ID]Mismatch{},
	}
	s.facts = facts.New(facts.Options{
		Dataplane: func(id mesh.ID) *mesh.Dataplane { return o.View().Dataplane(id) }, Heard: o.Peers.Heard,
		Changed: o.Peers.Changed, Observe: o.Observe,
		Storage: o.Storage, Logger: o.Logger, Now: o.Now,
	})
	s.facts.Liveness.OnChange(o.Held)
	for _, id := range o.Authority.Joined() {
		s.ObserveIdentity(id)
	}
	if err := errors.Join(s.loadUnaccepted(), s.loadDraining(), s.loadDrained(), s.facts.Load()); err != nil {
		return nil, err
	}
	return s, nil
}

// Facts returns the reports of agents and Envoys, from all replicas.
func (s *State) Facts() *facts.Facts { return s.facts }

// Kept reports whether observations survive a restart.
func (s *State) Kept() bool { return s.o.Storage != nil }

// Of returns the Observation of a proxy.
func (s *State) Of(id mesh.ID) mesh.Observation { return s.facts.Of(id) }

// ObserveIdentity updates the certificate in the Observation of a proxy.
func (s *State) ObserveIdentity(id mesh.ID) {
	// Of two concurrent calls, the later one must not pass on the older state.
	s.identities.Lock()
	defer s.identities.Unlock()
	path, joined := s.o.Authority.PathInUse(id)
	s.facts.Update(id, func(o *facts.Own) { o.Joined, o.Path, o.Expired = joined, path, s.expired(id) })
	if !joined {
		s.forgetListeners(id)
		s.logUnkept(context.Background(), id, s.facts.Drop(id))
	}
}

// ObserveExpiry updates proxies whose certificate has expired since the last call, also because the clock jumped.
func (s *State) ObserveExpiry() {
	for _, id := range s.o.Authority.Joined() {
		if s.expired(id) != s.Of(id).Expired {
			s.ObserveIdentity(id)
		}
	}
}

func (s *State) expired(id mesh.ID) bool {
	c, known := s.o.Authority.CertificateInUse(id)
	return known && !s.o.Now().Before(c.NotAfter)
}

// Replaced removes the observations of an earlier proxy of the same name, if there was one.
func (s *State) Replaced(ctx context.Context, now identity.Subject, hadSession bool) {
	if !s.o.Authority.Replaced(now) && !hadSession {
		return
	}
	id := now.ID()
	s.o.Logger.InfoContext(ctx, "proxy replaced by a newer proxy of the same name",
		"mesh", now.Mesh, "proxy", now.Dataplane, "instance", now.Instance)
	if err := s.drains.Remove(id); err != nil {
		s.o.Logger.ErrorContext(ctx, "failed to remove the drain record",
			"mesh", now.Mesh, "proxy", now.Dataplane, "err", err)
	}
	s.observeDraining(id, false)
	s.ForgetIssued(id)
	s.ObserveIdentity(id)
}

// Sessions tells which proxies have a session.
type Sessions interface {
	// Connected reports whether the proxy's agent has a session.
	Connected(id mesh.ID) bool
	// Without calls do if the proxy has no session, and prevents a new session meanwhile.
	Without(id mesh.ID, do func() error) error
}

// Forget forgets proxies that will not reconnect, because they have no Dataplane, session or valid certificate.
func (s *State) Forget(ctx context.Context, sessions Sessions) {
	if err := s.sweep(sessions); err != nil {
		s.o.Logger.ErrorContext(ctx, "failed to remove expired certificate records", "err", err)
	}
	if s.o.View() == nil {
		return
	}
	gone := func(id mesh.ID) bool {
		_, p := s.o.View().Proxy(id) // the current view, which may have new proxies
		return p == nil && !sessions.Connected(id) && !s.o.Authority.HasCertificate(id)
	}
	if err := errors.Join(s.forgetDrains(gone, sessions), s.forgetDrained(gone)); err != nil {
		s.o.Logger.ErrorContext(ctx, "failed to remove drain records", "err", err)
	}
	forgotten, err := s.facts.Forget(gone)
	if err != nil {
		s.o.Logger.ErrorContext(ctx, "failed to remove records of applications", "err", err)
	}
	s.mu.Lock()
	for _, id := range forgotten {
		delete(s.streams, id) // otherwise its next listeners would have the order of a forgotten stream
	}
	s.mu.Unlock()
	s.expirePlaintext()
	s.forgetTold(gone)
}

// sweep forgets proxies with an expired certificate; if certificates are only in memory, all removed proxies. A proxy
// with a Dataplane stays joined: after a long outage all certificates have expired, and their endpoints must stay. So
// does a proxy with a session, whose agent would not report again.
func (s *State) sweep(sessions Sessions) error {
	v := s.o.View()
	forgotten, err := s.o.Authority.Sweep(func(id mesh.ID) bool {
		_, p := v.Proxy(id)
		return v == nil || p != nil || sessions.Connected(id)
	})
	for _, id := range forgotten {
		s.ObserveIdentity(id)
	}
	return err
}
