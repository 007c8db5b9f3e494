package observed

import (
	"sync"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// facts are what this replica knows of a proxy by itself. They can be compared by ==.
type facts struct {
	mesh.Observation
	// session is the order of the one that has said whether the proxy drains; reported that of the one by which NotServing is known, if
	// applications is set; heldBy that of the one by which Held is known, if liveness is set; stream that of the ADS stream by which Listeners are
	// known, if ListenersKnown is set.
	session, reported, heldBy, stream Order
	applications, liveness            bool
}

// observations has the Observation of each proxy, and passes each change on.
type observations struct {
	// pass gets an Observation that has changed, changed a proxy of which this replica knows something else by itself.
	pass    func(mesh.ID, mesh.Observation)
	changed func(mesh.ID)
	// merge adds what other replicas have said.
	merge func(mesh.ID, facts) mesh.Observation

	mu sync.Mutex
	// own has what this replica knows, known what all do.
	own   map[mesh.ID]facts
	known map[mesh.ID]mesh.Observation
}

// update changes the facts of a proxy. Changes of one proxy are passed on in their order.
func (o *observations) update(id mesh.ID, change func(*facts)) {
	if o.updateOwn(id, change) {
		o.changed(id)
	}
}

func (o *observations) updateOwn(id mesh.ID, change func(*facts)) (changed bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	before := o.own[id]
	now := before
	change(&now)
	if now == before {
		return false
	}
	if now == (facts{}) {
		delete(o.own, id)
	} else {
		o.own[id] = now
	}
	o.remerge(id)
	return true
}

// heard passes on what other replicas have said.
func (o *observations) heard(id mesh.ID) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.remerge(id)
}

// remerge needs mu.
func (o *observations) remerge(id mesh.ID) {
	now := o.merge(id, o.own[id])
	switch now {
	case o.known[id]:
		return
	case mesh.Observation{}:
		delete(o.known, id)
	default:
		o.known[id] = now
	}
	o.pass(id, now)
}

// of returns the Observation of a proxy.
func (o *observations) of(id mesh.ID) mesh.Observation {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.known[id]
}

func (o *observations) factsOf(id mesh.ID) facts {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.own[id]
}

// which returns the proxies of whose facts that holds.
func (o *observations) which(holds func(facts) bool) []mesh.ID {
	o.mu.Lock()
	defer o.mu.Unlock()
	var ids []mesh.ID
	for id, one := range o.own {
		if holds(one) {
			ids = append(ids, id)
		}
	}
	return ids
}
