// Package observed records what this replica learns of each proxy beside its Dataplane: whether it has joined, with which identity, whether it drains, what
// its Envoy has accepted, whether its applications can take traffic, and which guarded liveness probes fail. Package facts merges it with what other replicas know.
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
	// Authority knows which proxies have joined.
	Authority *identity.Authority
	// Storage keeps which proxies drain, and which are not ready yet. Default: that is only in memory, which is enough where something else
	// says which endpoints get traffic, such as Kubernetes.
	Storage facts.Storage
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// Observe passes the whole Observation of a proxy to the view's builder, and returns at once. It must not call the State.
	Observe func(proxy mesh.ID, o mesh.Observation)
	// Held is told of proxies of which PodLiveness says something else. It returns at once, and must not call the State. Default: nothing is.
	Held func(proxy mesh.ID)
	// Peers are the other replicas, nil for none.
	Peers  *replicas.Peers
	Logger *slog.Logger
	Now    func() time.Time
}

// State is what is known of all proxies. Every replica makes the whole view, so each needs all of it that decides about an endpoint; but an
// agent and its Envoy talk to one replica. Each field says whether that one may own it alone.
type State struct {
	o     Options
	facts *facts.Facts
	// identities is locked while what was issued to a proxy is passed to facts. Alone: a lock of this process.
	identities sync.Mutex
	// drains has the proxies that drain, drained why administrators drain proxies, unacceptedRecords the proxies that have joined and whose
	// Envoy has never accepted a listener: else their endpoints would become ready with a restart of the control plane. With replicas there is no
	// storage.
	drains, drained, unacceptedRecords facts.Directory
	// drainedLock is locked while drained changes.
	drainedLock sync.Mutex
	plaintexts  plaintexts

	mu sync.Mutex
	// streams is since when the ADS stream is open by which the listeners of a proxy are known. Alone.
	streams map[mesh.ID]time.Time
	// issued are the certificates with which proxies have joined here, until they have had a session. Other replicas are told.
	issued map[mesh.ID]*peerv1.Certificate
	// unaccepted are the proxies in unacceptedRecords.
	unaccepted map[mesh.ID]bool
	// mismatches are those that have been logged, see CheckWorkload. Alone: each replica logs once.
	mismatches map[mesh.ID]Mismatch
}

// New returns a State. It reads from the storage what was known before the restart, and passes it to Observe, so that the first view has it.
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
		Dataplane: func(id mesh.ID) *mesh.Dataplane { return o.View().Dataplane(id) }, Heard: o.Peers.Heard, Changed: o.Peers.Changed, Observe: o.Observe,
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

// Facts are what agents and Envoys have said, here and at other replicas.
func (s *State) Facts() *facts.Facts { return s.facts }

// Kept reports whether what is known outlives a restart.
func (s *State) Kept() bool { return s.o.Storage != nil }

// Of returns the Observation of a proxy.
func (s *State) Of(id mesh.ID) mesh.Observation { return s.facts.Of(id) }

// ObserveIdentity updates what the Observation of a proxy says of its certificate.
func (s *State) ObserveIdentity(id mesh.ID) {
	// Of two calls at once, the later one must not pass on the earlier state.
	s.identities.Lock()
	defer s.identities.Unlock()
	path, joined := s.o.Authority.PathInUse(id)
	s.facts.Update(id, func(o *facts.Own) { o.Joined, o.Path, o.Expired = joined, path, s.expired(id) })
	if !joined {
		s.forgetListeners(id)
		s.logUnkept(context.Background(), id, s.facts.Drop(id))
	}
}

// ObserveExpiry updates what is known of proxies whose certificate has expired since: a clock may have jumped, too.
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

// Replaced forgets what is known of an earlier proxy of the same name. It returns whether there was one.
func (s *State) Replaced(ctx context.Context, now identity.Subject, hadSession bool) {
	if !s.o.Authority.Replaced(now) && !hadSession {
		return
	}
	id := now.ID()
	s.o.Logger.InfoContext(ctx, "proxy replaced by another one of its name", "mesh", now.Mesh, "proxy", now.Dataplane, "instance", now.Instance)
	if err := s.drains.Remove(id); err != nil {
		s.o.Logger.ErrorContext(ctx, "drain record not removed", "mesh", now.Mesh, "proxy", now.Dataplane, "err", err)
	}
	s.observeDraining(id, false)
	s.ForgetIssued(id)
	s.ObserveIdentity(id)
}

// Sessions knows which proxies have a session.
type Sessions interface {
	// Connected reports whether the proxy's agent has a session.
	Connected(id mesh.ID) bool
	// Without calls do if the proxy has no session, and lets none open meanwhile.
	Without(id mesh.ID, do func() error) error
}

// Forget forgets proxies that will not connect again: without a Dataplane, a session and a valid certificate.
func (s *State) Forget(ctx context.Context, sessions Sessions) {
	if err := s.sweep(sessions); err != nil {
		s.o.Logger.ErrorContext(ctx, "expired certificate records not removed", "err", err)
	}
	if s.o.View() == nil {
		return
	}
	gone := func(id mesh.ID) bool {
		_, p := s.o.View().Proxy(id) // as it is now: a proxy may have come since others were asked for
		return p == nil && !sessions.Connected(id) && !s.o.Authority.HasCertificate(id)
	}
	if err := errors.Join(s.forgetDrains(gone, sessions), s.forgetDrained(gone)); err != nil {
		s.o.Logger.ErrorContext(ctx, "drain records not removed", "err", err)
	}
	forgotten, err := s.facts.Forget(gone)
	if err != nil {
		s.o.Logger.ErrorContext(ctx, "records of applications not removed", "err", err)
	}
	s.mu.Lock()
	for _, id := range forgotten {
		delete(s.streams, id) // else what it says next has the order of no stream
	}
	s.mu.Unlock()
	s.expirePlaintext()
	s.forgetTold(gone)
}

// sweep forgets proxies whose certificate has expired, or all that are gone if they are only in memory. A proxy with a Dataplane
// stays one that has joined: after a long outage all certificates have expired, and no endpoint may vanish because of that. So does
// one with a session, whose agent would not report again.
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
