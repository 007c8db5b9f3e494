package observed

import (
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
