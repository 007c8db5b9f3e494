package observed

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// HeldContainer is a container whose guarded liveness probe fails.
type HeldContainer struct {
	Container string
	// Since is since when, by the clock of this process.
	Since time.Time
	// Reason is why the last check failed, to be shown.
	Reason string
	// Grant is the name of the one by which the kubelet is told of the failure, "" if there is none.
	Grant string
	// Told says that the kubelet is told of the failure without a grant, so that nothing is held back.
	Told bool
}

// anyHeld reports whether a container is held, or about to restart by its grant.
func anyHeld(failing []HeldContainer) bool {
	return slices.ContainsFunc(failing, func(c HeldContainer) bool { return !c.Told })
}

// PodLiveness is what the agent of a pod says of its guarded liveness probes. It must not be changed.
type PodLiveness struct {
	Failing []HeldContainer
	// Passing are the containers whose last check has passed, Unused the names of grants that were not used up.
	Passing, Unused []string
}

// heldReport is what is known of the guarded liveness probes of a pod.
type heldReport struct {
	known bool
	order Order // of the session in which the agent has said it
	PodLiveness
}

// heldLiveness says which guarded liveness probes fail. Agents say all of it in each session, so that it is in no storage.
type heldLiveness struct {
	mu sync.Mutex
	// own has what agents have said here. Other replicas are told.
	own map[mesh.ID]heldReport
	// newest has what is known by all replicas, of proxies that are in the view.
	newest map[mesh.ID]PodLiveness
}

// Liveness records which guarded liveness probes of a pod fail, as its agent has said at that time, and logs what has changed.
func (s *State) Liveness(ctx context.Context, who identity.Subject, session Order, at time.Time, m *agentv1.Liveness) {
	id := who.ID()
	now := heldReport{known: true, order: session, PodLiveness: livenessOf(m, at)}
	s.held.mu.Lock()
	if d := s.o.View().Dataplane(id); d != nil && d.Identity.Instance != who.Instance { // with the lock: Replaced forgets what an earlier view has let in
		s.held.mu.Unlock()
		return
	}
	before := s.held.newest[id]
	s.setHeld(id, now)
	s.held.mu.Unlock()
	s.refreshHeld(id)
	s.logHeld(ctx, id, before.Failing, now.Failing)
}

// livenessOf returns what an agent has said, which was heard at that time.
func livenessOf(m *agentv1.Liveness, at time.Time) PodLiveness {
	l := PodLiveness{Passing: m.GetPassing(), Unused: m.GetUnused()}
	for _, h := range m.GetHeld() {
		l.Failing = append(l.Failing, HeldContainer{
			Container: h.GetContainer(), Since: at.Add(-h.GetFailing().AsDuration()), Reason: cut.Text(h.GetReason(), agentv1.MaxReason), Grant: h.GetGrant(),
			Told: h.GetTold() && h.GetGrant() == "",
		})
	}
	return l
}

// same compares all but the times: each message is on its way for another while.
func (l PodLiveness) same(other PodLiveness) bool {
	return slices.Equal(l.Passing, other.Passing) && slices.Equal(l.Unused, other.Unused) && slices.EqualFunc(l.Failing, other.Failing, func(a, b HeldContainer) bool {
		a.Since = b.Since
		return a == b
	})
}

func (l PodLiveness) isEmpty() bool { return len(l.Failing)+len(l.Passing)+len(l.Unused) == 0 }

// setHeld needs held.mu, so that no earlier state is passed on after a later one.
func (s *State) setHeld(id mesh.ID, now heldReport) {
	before := s.held.own[id]
	if now.known {
		s.held.own[id] = now
	} else {
		delete(s.held.own, id)
	}
	s.observed.update(id, func(f *facts) { f.Held, f.liveness, f.heldBy = anyHeld(now.Failing), now.known, now.order })
	if !before.same(now.PodLiveness) {
		s.o.Peers.Changed(id) // also if only a reason or a grant has changed
	}
}

// dropHeld forgets what agents have said here of the liveness probes of a proxy.
func (s *State) dropHeld(id mesh.ID) {
	s.held.mu.Lock()
	known := s.held.own[id].known
	if known {
		s.setHeld(id, heldReport{})
	}
	s.held.mu.Unlock()
	if known {
		s.refreshHeld(id)
	}
}

// refreshHeld takes over what is known now by all replicas.
func (s *State) refreshHeld(id mesh.ID) {
	s.held.mu.Lock()
	before, now := s.held.newest[id], s.newestHeld(id)
	if now.isEmpty() {
		delete(s.held.newest, id)
	} else {
		s.held.newest[id] = now
	}
	s.held.mu.Unlock()
	if !before.same(now) {
		s.o.Held(id)
	}
}

// newestHeld returns what the newest session of a proxy in the view has said, with whichever replica. It needs held.mu.
func (s *State) newestHeld(id mesh.ID) PodLiveness {
	if s.o.View().Dataplane(id) == nil {
		return PodLiveness{}
	}
	newest := s.held.own[id]
	for _, said := range s.Said(id) {
		m := said.Proxy.GetLiveness()
		if order := OrderOf(m.GetOrder()); m != nil && (!newest.known || order.Compare(newest.order) > 0) {
			newest = heldReport{known: true, order: order, PodLiveness: livenessOf(m.GetSaid(), said.At)}
		}
	}
	return newest.PodLiveness
}

// PodLiveness returns what is known by all replicas of guarded liveness probes, by proxy.
func (s *State) PodLiveness() map[mesh.ID]PodLiveness {
	s.held.mu.Lock()
	defer s.held.mu.Unlock()
	return maps.Clone(s.held.newest)
}

// Gone tells that a proxy is not in the view any more.
func (s *State) Gone(id mesh.ID) {
	s.refreshHeld(id)
	s.refreshPlaintext(id)
}

// forgetHeld forgets what agents of proxies have said that are gone.
func (s *State) forgetHeld(gone func(mesh.ID) bool) {
	for _, id := range s.observed.which(func(f facts) bool { return f.liveness }) {
		if gone(id) {
			s.dropHeld(id)
		}
	}
}

// tellHeld returns what other replicas are told, nil if that is nothing.
func (s *State) tellHeld(id mesh.ID) *peerv1.Liveness {
	s.held.mu.Lock()
	own := s.held.own[id]
	s.held.mu.Unlock()
	if !own.known {
		return nil
	}
	m, now := &agentv1.Liveness{Passing: own.Passing, Unused: own.Unused}, s.o.Now()
	for _, c := range own.Failing {
		m.Held = append(m.Held, &agentv1.HeldLiveness{
			Container: c.Container, Failing: durationpb.New(now.Sub(c.Since)), Reason: c.Reason, Grant: c.Grant, Told: c.Told,
		})
	}
	return &peerv1.Liveness{Order: own.order.Proto(), Said: m}
}

func (s *State) logHeld(ctx context.Context, id mesh.ID, before, now []HeldContainer) {
	meshName, name := mesh.SplitID(id)
	log := s.o.Logger.With("mesh", meshName, "proxy", name)
	in := func(all []HeldContainer, container string) bool {
		return slices.ContainsFunc(all, func(c HeldContainer) bool { return c.Container == container })
	}
	for _, c := range now {
		if !in(before, c.Container) {
			log.WarnContext(ctx, "guarded liveness probe fails", "container", c.Container, "reason", c.Reason)
		}
	}
	for _, c := range before {
		if !in(now, c.Container) {
			log.InfoContext(ctx, "guarded liveness probe does not fail any more", "container", c.Container)
		}
	}
}
