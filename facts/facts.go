// Package facts keeps what agents and Envoys report of each proxy, to any replica of the control plane: a register for
// each kind. Each fact has the Order of the session or stream that reported it, and the newest fact is used. Together
// the facts of a proxy make one mesh.Observation.
package facts

import (
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// kinds are all kinds, in the order in which they are checked.
var kinds = []interface {
	order(*peerv1.Proxy) *peerv1.Order
	check(*Bounds, *peerv1.Proxy)
}{Session, Applications, Listeners, Liveness, Plaintext, Verdicts}

// Said is what another replica reports about a proxy.
type Said struct {
	Replica string
	Proxy   *peerv1.Proxy // must not be changed
	// At is when it was received, by the clock of this process.
	At time.Time
	// Lost is since when the replica has been disconnected, zero while it is connected.
	Lost time.Time
}

// Superseded reports whether others has a newer fact for each kind in m.
func Superseded(m *peerv1.Proxy, others []*peerv1.Proxy) bool {
	for _, k := range kinds {
		order := k.order(m)
		if order != nil && !slices.ContainsFunc(others, func(other *peerv1.Proxy) bool {
			return k.order(other) != nil && OrderOf(k.order(other)).Compare(OrderOf(order)) > 0
		}) {
			return false
		}
	}
	return true
}

// Options of Facts. All are required but Storage.
type Options struct {
	// Dataplane returns the Dataplane of a proxy in the view, nil if it does not exist.
	Dataplane func(mesh.ID) *mesh.Dataplane
	// Heard returns what other replicas report of a proxy.
	Heard func(mesh.ID) []Said
	// Changed is called when other replicas must be informed about a proxy, Observe when its Observation has changed.
	// They must return at once, and must not call the Facts.
	Changed func(mesh.ID)
	Observe func(mesh.ID, mesh.Observation)
	// Storage keeps what agents do not report again. Default: nothing is kept.
	Storage Storage
	Logger  *slog.Logger
	Now     func() time.Time
}

// Own has the fields of an Observation that belong to no register, with this replica's values.
type Own struct {
	Joined, Draining, Expired bool
	Path, Administrator       string
	// Session is the order of the session that reported Draining.
	Session Order
}

// Facts has the facts of all proxies.
type Facts struct {
	Applications *Register[*peerv1.Applications]
	Listeners    *Register[*peerv1.Listeners]
	Liveness     *Register[*peerv1.Liveness]
	Plaintext    *Register[*peerv1.Plaintext]
	Verdicts     *Register[*peerv1.Verdicts]

	o         Options
	registers []interface {
		observe(id mesh.ID, said []Said, o *mesh.Observation)
		refresh(id mesh.ID)
		Tell(id mesh.ID, m *peerv1.Proxy) bool
		ids(all map[mesh.ID]bool)
		load() error
		Drop(id mesh.ID) error
	}

	mu sync.Mutex
	// own has this replica's own state, known the merged Observations.
	own   map[mesh.ID]Own
	known map[mesh.ID]mesh.Observation
}

// New returns empty Facts.
func New(o Options) *Facts {
	f := &Facts{o: o, own: map[mesh.ID]Own{}, known: map[mesh.ID]mesh.Observation{}}
	f.Applications = newRegister(f, Applications)
	f.Listeners = newRegister(f, Listeners)
	f.Liveness = newRegister(f, Liveness)
	f.Plaintext = newRegister(f, Plaintext)
	f.Verdicts = newRegister(f, Verdicts)
	return f
}

// Load restores the stored facts.
func (f *Facts) Load() error {
	var errs []error
	for _, r := range f.registers {
		errs = append(errs, r.load())
	}
	return errors.Join(errs...)
}

// Said returns what other replicas report about a proxy. If the view has the proxy, reports about other instances of it
// are left out.
func (f *Facts) Said(id mesh.ID) []Said {
	all := f.o.Heard(id)
	d := f.o.Dataplane(id)
	if d == nil {
		return all
	}
	return slices.DeleteFunc(all, func(said Said) bool { return said.Proxy.GetInstance() != d.Identity.Instance })
}

// Update changes the Own of a proxy. Changes of one proxy are passed on in their order.
func (f *Facts) Update(id mesh.ID, change func(*Own)) {
	f.mu.Lock()
	before := f.own[id]
	now := before
	change(&now)
	if now == (Own{}) {
		delete(f.own, id)
	} else {
		f.own[id] = now
	}
	if now != before {
		f.remerge(id)
	}
	f.mu.Unlock()
	if now != before {
		f.o.Changed(id)
	}
}

// Heard updates a proxy after a report of another replica, or after it has entered or left the view.
func (f *Facts) Heard(id mesh.ID) {
	f.mu.Lock()
	f.remerge(id)
	f.mu.Unlock()
	for _, r := range f.registers {
		r.refresh(id)
	}
}

// remerge merges the facts of a proxy again, and passes on the Observation if it has changed. The caller holds mu.
func (f *Facts) remerge(id mesh.ID) {
	own, said := f.own[id], f.Said(id)
	now := f.known[id]
	now.Joined, now.Draining, now.Expired, now.Path, now.Administrator = own.Joined, own.Draining, own.Expired, own.Path,
		own.Administrator
	if newest, found := Session.Newest(said); found &&
		OrderOf(newest.Proxy.GetSession().GetOrder()).Compare(own.Session) > 0 {
		now.Draining = newest.Proxy.GetSession().GetDraining()
	}
	for _, r := range f.registers {
		r.observe(id, said, &now)
	}
	switch now {
	case f.known[id]:
		return
	case mesh.Observation{}:
		delete(f.known, id)
	default:
		f.known[id] = now
	}
	f.o.Observe(id, now)
}

// Of returns the Observation of a proxy.
func (f *Facts) Of(id mesh.ID) mesh.Observation {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.known[id]
}

// Own returns the Own of a proxy.
func (f *Facts) Own(id mesh.ID) Own {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.own[id]
}

// Which returns the proxies whose Own matches.
func (f *Facts) Which(matches func(Own) bool) []mesh.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	var ids []mesh.ID
	for id, one := range f.own {
		if matches(one) {
			ids = append(ids, id)
		}
	}
	return ids
}

// Tell adds this replica's own facts of a proxy to m, and returns false without any.
func (f *Facts) Tell(id mesh.ID, m *peerv1.Proxy) bool {
	known := false
	for _, r := range f.registers {
		known = r.Tell(id, m) || known
	}
	return known
}

// Told returns the proxies with own facts.
func (f *Facts) Told() []mesh.ID {
	f.mu.Lock()
	defer f.mu.Unlock()
	all := map[mesh.ID]bool{}
	for _, r := range f.registers {
		r.ids(all)
	}
	return slices.Collect(maps.Keys(all))
}

// Drop forgets this replica's own facts of a proxy. If it returns an error, a stored record of them remains.
func (f *Facts) Drop(id mesh.ID) error {
	var errs []error
	for _, r := range f.registers {
		errs = append(errs, r.Drop(id))
	}
	return errors.Join(errs...)
}

// Forget drops the proxies for which gone returns true.
func (f *Facts) Forget(gone func(mesh.ID) bool) (forgotten []mesh.ID, err error) {
	var errs []error
	for _, id := range f.Told() {
		if gone(id) {
			forgotten, errs = append(forgotten, id), append(errs, f.Drop(id))
		}
	}
	return forgotten, errors.Join(errs...)
}
