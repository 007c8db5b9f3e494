package agents

import (
	"context"
	"sync"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// observations has the one Observation of each proxy. Several sources change parts of it; the builder gets the whole.
type observations struct {
	pass func(mesh.ID, mesh.Observation)

	mu    sync.Mutex
	known map[mesh.ID]mesh.Observation
}

func newObservations(pass func(mesh.ID, mesh.Observation)) *observations {
	return &observations{pass: pass, known: map[mesh.ID]mesh.Observation{}}
}

// update changes the Observation of a proxy, and passes it on if it then differs.
func (o *observations) update(id mesh.ID, change func(*mesh.Observation)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.known[id]
	now := before
	change(&now)
	switch now {
	case before:
		return
	case mesh.Observation{}:
		delete(o.known, id)
	default:
		o.known[id] = now
	}
	o.pass(id, now)
}

func (o *observations) of(id mesh.ID) mesh.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[id]
}

// which returns the proxies of which something holds.
func (o *observations) which(holds func(mesh.Observation) bool) []mesh.ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ids []mesh.ID
	for id, one := range o.known {
		if holds(one) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Observe changes the Observation of a proxy, which the server keeps as a whole, and passes it to the view's builder.
// change must not call the server.
func (s *Server) Observe(proxy mesh.ID, change func(*mesh.Observation)) {
	s.observed.update(proxy, change)
}

// observeIdentity updates what the Observation of a proxy says of its certificate.
func (s *Server) observeIdentity(id mesh.ID) {
	// Of two calls at once, the later one must not pass on the earlier state.
	s.identities.Lock()
	defer s.identities.Unlock()
	path, joined := s.o.Authority.PathInUse(id)
	s.Observe(id, func(o *mesh.Observation) { o.Joined, o.Path = joined, path })
	if !joined {
		s.forgetListeners(id)
		s.logUnkept(context.Background(), id, s.forgetApplicationsOf(id))
	}
}

// loadJoined restores which proxies had joined before the restart, if that is kept.
func (s *Server) loadJoined() {
	for _, id := range s.o.Authority.Joined() {
		s.observeIdentity(id)
	}
}

// sweep forgets proxies whose certificate has expired, or all that are gone if they are only in memory. A proxy with a Dataplane
// stays one that has joined: after a long outage all certificates have expired, and no endpoint may vanish because of that. So does
// one with a session, whose agent would not report again.
func (s *Server) sweep() error {
	v := s.o.View()
	forgotten, err := s.o.Authority.Sweep(func(id mesh.ID) bool {
		_, p := v.Proxy(id)
		return v == nil || p != nil || s.connected(id)
	})
	for _, id := range forgotten {
		s.observeIdentity(id)
	}
	return err
}
