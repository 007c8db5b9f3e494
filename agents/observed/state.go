// Package observed keeps what is known of each proxy beside its Dataplane: whether it has joined, with which identity, whether it drains, what
// its Envoy has accepted, whether its applications can take traffic, and which guarded liveness probes fail. All of it makes one mesh.Observation, which the view's builder gets.
// What agents do not say again is kept in a storage.
package observed

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/peers"
)

// Storage keeps sets of proxies, and what is known of them. Names are slash-separated paths. Write is atomic, and durable as soon as the disk
// takes it, for which it does not wait long. List returns the names in a directory; one that does not exist is empty. *store.Records
// implements it.
type Storage interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	Remove(name string) error
	List(directory string) ([]string, error)
}

// Options of a State. All are required but Storage and Held.
type Options struct {
	// Authority knows which proxies have joined.
	Authority *identity.Authority
	// Storage keeps which proxies drain, and which are not ready yet. Default: that is only in memory, which is enough where something else
	// says which endpoints get traffic, such as Kubernetes.
	Storage Storage
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// Observe passes the whole Observation of a proxy to the view's builder, and returns at once. It must not call the State.
	Observe func(proxy mesh.ID, o mesh.Observation)
	// Held is told of proxies of which PodLiveness says something else. It returns at once, and must not call the State. Default: nothing is.
	Held func(proxy mesh.ID)
	// Peers are the other replicas, nil for none.
	Peers  *peers.Peers
	Logger *slog.Logger
	Now    func() time.Time
}

// State is what is known of all proxies. Every replica makes the whole view, so each needs all of it that decides about an endpoint; but an
// agent and its Envoy talk to one replica. Each field says whether that one may own it alone.
type State struct {
	o Options
	// observed is the sum of what follows and of what other replicas have said, for the view.
	observed *observations
	// identities is locked while what was issued to a proxy is passed to observed. Alone: a lock of this process.
	identities sync.Mutex
	// drains has the proxies that drain, drained why administrators drain proxies, unacceptedRecords the proxies that have joined and whose
	// Envoy has never accepted a listener: else their endpoints would become ready with a restart of the control plane. With replicas there is no
	// storage.
	drains, drained, unacceptedRecords directory
	// drainedLock is locked while drained changes.
	drainedLock sync.Mutex
	// applications says which cannot take traffic. Other replicas are told.
	applications *applications
	held         heldLiveness
	plaintexts   plaintexts

	mu sync.Mutex
	// refused says why Envoy refuses inbound listeners, by address. Other replicas are told.
	refused map[mesh.ID]map[netip.AddrPort]string
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
		drains:            directory{"draining", o.Storage},
		drained:           directory{"drained", o.Storage},
		unacceptedRecords: directory{"unaccepted", o.Storage},
		held:              heldLiveness{own: map[mesh.ID]heldReport{}, newest: map[mesh.ID]PodLiveness{}},
		plaintexts:        newPlaintexts(o.Now()),
		refused:           map[mesh.ID]map[netip.AddrPort]string{},
		streams:           map[mesh.ID]time.Time{},
		issued:            map[mesh.ID]*peerv1.Certificate{},
		unaccepted:        map[mesh.ID]bool{},
		mismatches:        map[mesh.ID]Mismatch{},
	}
	s.observed = &observations{pass: o.Observe, changed: o.Peers.Changed, merge: s.merge, own: map[mesh.ID]facts{}, known: map[mesh.ID]mesh.Observation{}}
	s.applications = newApplications(directory{"applications", o.Storage}, s.newestApplications, s.observed.update, o.Logger)
	for _, id := range o.Authority.Joined() {
		s.ObserveIdentity(id)
	}
	if err := errors.Join(s.loadUnaccepted(), s.loadDraining(), s.loadDrained(), s.applications.load()); err != nil {
		return nil, err
	}
	return s, nil
}

// Kept reports whether what is known outlives a restart.
func (s *State) Kept() bool { return s.o.Storage != nil }

// Of returns the Observation of a proxy.
func (s *State) Of(id mesh.ID) mesh.Observation { return s.observed.of(id) }

// ObserveIdentity updates what the Observation of a proxy says of its certificate.
func (s *State) ObserveIdentity(id mesh.ID) {
	// Of two calls at once, the later one must not pass on the earlier state.
	s.identities.Lock()
	defer s.identities.Unlock()
	path, joined := s.o.Authority.PathInUse(id)
	s.observed.update(id, func(f *facts) { f.Joined, f.Path = joined, path })
	if !joined {
		s.forgetListeners(id)
		s.dropHeld(id)
		s.logUnkept(context.Background(), id, s.applications.drop(id))
	}
}

// Replaced forgets what is known of an earlier proxy of the same name. It returns whether there was one.
func (s *State) Replaced(ctx context.Context, now identity.Subject, hadSession bool) {
	if !s.o.Authority.Replaced(now) && !hadSession {
		return
	}
	id := now.ID()
	s.o.Logger.InfoContext(ctx, "proxy replaced by another one of its name", "mesh", now.Mesh, "proxy", now.Dataplane, "instance", now.Instance)
	if err := s.drains.remove(id); err != nil {
		s.o.Logger.ErrorContext(ctx, "drain record not removed", "mesh", now.Mesh, "proxy", now.Dataplane, "err", err)
	}
	s.observeDraining(id, false)
	s.dropHeld(id)
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
	v := s.o.View()
	if v == nil {
		return
	}
	gone := func(id mesh.ID) bool {
		_, p := v.Proxy(id)
		return p == nil && !sessions.Connected(id) && !s.o.Authority.HasCertificate(id)
	}
	if err := errors.Join(s.forgetDrains(gone, sessions), s.forgetDrained(gone)); err != nil {
		s.o.Logger.ErrorContext(ctx, "drain records not removed", "err", err)
	}
	if err := s.applications.forget(gone); err != nil {
		s.o.Logger.ErrorContext(ctx, "records of applications not removed", "err", err)
	}
	s.forgetHeld(gone)
	s.forgetPlaintext(gone)
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
