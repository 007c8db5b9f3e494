package facts

import (
	"fmt"
	"log/slog"
	"maps"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
)

// Message is the message of one kind in a peerv1.Proxy.
type Message interface {
	comparable
	proto.Message
	GetOrder() *peerv1.Order
}

// Kind describes one kind of fact. Only Name and Field are required. The functions must not change messages.
type Kind[T Message] struct {
	// Name is the name of the field in peerv1.Proxy, for errors, and of the directory with its records.
	Name string
	// Field returns a pointer to the field.
	Field func(*peerv1.Proxy) *T
	// Check checks the bounds of all fields except the order.
	Check func(*Bounds, T)
	// PerInstance means that facts of an earlier proxy of the same name are dropped.
	PerInstance bool
	// Same compares two messages, except their orders. Default: two messages always differ.
	Same func(a, b T) bool
	// Tell returns the message for other replicas, some time after it was reported. Default: the message itself.
	Tell func(m T, after time.Duration) T
	// Observe writes the newest message, or nil without one, into o, which has the values from before. Default: it
	// writes nothing.
	Observe func(o *mesh.Observation, m T)
	// Keep stores the facts. Default: they are in memory only, since agents report them again.
	Keep *Format[T]
}

// Format stores a kind, so that it outlives a restart.
type Format[T Message] struct {
	// Marshal returns nil if no record is needed. Its argument may be nil.
	Marshal   func(T) ([]byte, error)
	Unmarshal func([]byte) (T, error)
	// Unread logs that a record cannot be read, with the consequence.
	Unread func(log *slog.Logger, err error)
}

// Fact is what was reported about a proxy. The zero Fact is unknown.
type Fact[T Message] struct {
	Said T // replaced, never changed
	// At is when it was reported, by the clock of this process.
	At time.Time
	// Instance of the proxy that reported it, for a kind with PerInstance.
	Instance string
}

// Known reports whether f is a fact.
func (f Fact[T]) Known() bool {
	var none T
	return f.Said != none
}

// Order returns the order of the session or stream that reported it.
func (f Fact[T]) Order() Order { return OrderOf(f.Said.GetOrder()) }

// Newest returns the report of the replica that has the newest fact of a kind, and false if none has one.
func (k Kind[T]) Newest(all []Said) (newest Said, found bool) {
	var order Order
	for _, ok := range all {
		fact := k.of(ok)
		if fact.Known() && (!found || fact.Order().Compare(order) > 0) {
			newest, order, found = ok, fact.Order(), true
		}
	}
	return newest, found
}

// of returns the fact of a kind.
func (k Kind[T]) of(said Said) Fact[T] {
	return Fact[T]{Said: *k.Field(said.Proxy), At: said.At, Instance: said.Proxy.GetInstance()}
}

// order returns nil if m, which may be nil, has no fact of the kind.
func (k Kind[T]) order(m *peerv1.Proxy) *peerv1.Order {
	if m == nil {
		return nil
	}
	return (*k.Field(m)).GetOrder()
}

func (k Kind[T]) check(b *Bounds, m *peerv1.Proxy) {
	b.order("proxy."+k.Name+".order", k.order(m))
	if k.Check != nil {
		k.Check(b, *k.Field(m))
	}
}

func (k Kind[T]) same(a, b Fact[T]) bool {
	return a.Said == b.Said || a.Known() && b.Known() && k.Same != nil && k.Same(a.Said, b.Said)
}

// Register keeps the facts of one kind.
type Register[T Message] struct {
	kind    Kind[T]
	facts   *Facts
	records Directory
	changed func(mesh.ID)
	writing sync.Mutex // held while one record is written

	// Guarded by Facts.mu, which is not locked during writes, since changes of endpoints need it. own has what was
	// reported to this replica.
	own map[mesh.ID]Fact[T]
	// newest has, if changed is set, the newest fact of any replica for each proxy in the view, unless Kind.Same finds
	// its message the same as nil.
	newest map[mesh.ID]Fact[T]
}

func newRegister[T Message](f *Facts, k Kind[T]) *Register[T] {
	r := &Register[T]{kind: k, facts: f, records: Directory{k.Name, f.o.Storage}, own: map[mesh.ID]Fact[T]{},
		newest: map[mesh.ID]Fact[T]{}}
	f.registers = append(f.registers, r)
	return r
}

// OnChange sets a function that is called when the newest fact of a proxy in the view changes, or the proxy leaves the
// view. It must return at once. OnChange must be called before all other methods.
func (r *Register[T]) OnChange(changed func(mesh.ID)) { r.changed = changed }

// Update replaces this replica's own fact of a proxy. change gets this fact and the newest fact of all replicas, and
// must not call the Facts. If Update returns an error, the new fact is in effect, but not stored.
func (r *Register[T]) Update(id mesh.ID, change func(own, newest Fact[T]) Fact[T]) error {
	r.facts.mu.Lock()
	own := r.own[id]
	now := change(own, r.newestOf(id, r.facts.Said(id)))
	put(r.own, id, now)
	news := !r.kind.same(own, now) || own.Order() != now.Order() || own.Instance != now.Instance
	if news {
		r.facts.remerge(id)
	}
	r.facts.mu.Unlock()
	r.refresh(id)
	if !news {
		return nil
	}
	r.facts.o.Changed(id)
	return r.keep(id)
}

// Say replaces this replica's own fact of a proxy, for a kind that is not stored. It returns the newest fact of all
// replicas before the change. If the view has another instance of the proxy, it changes nothing and returns false.
func (r *Register[T]) Say(id mesh.ID, now Fact[T]) (before Fact[T], taken bool) {
	_ = r.Update(id, func(own, newest Fact[T]) Fact[T] {
		before, taken = newest, r.isOf(id, now) // under the lock, since a later view calls Heard
		if !taken {
			return own
		}
		return now
	})
	return before, taken
}

// Drop forgets this replica's own fact of a proxy.
func (r *Register[T]) Drop(id mesh.ID) error {
	return r.Update(id, func(Fact[T], Fact[T]) Fact[T] { return Fact[T]{} })
}

func put[T Message](facts map[mesh.ID]Fact[T], id mesh.ID, f Fact[T]) {
	if f.Known() {
		facts[id] = f
	} else {
		delete(facts, id)
	}
}

// Own returns this replica's own fact of a proxy.
func (r *Register[T]) Own(id mesh.ID) Fact[T] {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	return r.ownOf(id)
}

// Newest returns the newest fact of all replicas about a proxy.
func (r *Register[T]) Newest(id mesh.ID) Fact[T] {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	return r.newestOf(id, r.facts.Said(id))
}

// All returns the newest facts of all proxies in the view, for a kind with OnChange, except messages that Kind.Same
// finds the same as nil.
func (r *Register[T]) All() map[mesh.ID]Fact[T] {
	r.facts.mu.Lock()
	defer r.facts.mu.Unlock()
	return maps.Clone(r.newest)
}

// isOf reports whether a fact is about the instance in the view.
func (r *Register[T]) isOf(id mesh.ID, f Fact[T]) bool {
	d := r.facts.o.Dataplane(id)
	return !r.kind.PerInstance || d == nil || d.Identity.Instance == f.Instance
}

// ownOf returns this replica's own fact. The caller holds Facts.mu.
func (r *Register[T]) ownOf(id mesh.ID) Fact[T] {
	if own := r.own[id]; r.isOf(id, own) {
		return own
	}
	return Fact[T]{}
}

// newestOf returns the newest fact. The caller holds Facts.mu.
func (r *Register[T]) newestOf(id mesh.ID, said []Said) Fact[T] {
	own := r.ownOf(id)
	if other, found := r.kind.Newest(said); found {
		if newest := r.kind.of(other); !own.Known() || newest.Order().Compare(own.Order()) > 0 {
			return newest
		}
	}
	return own
}

// refresh updates newest, and calls changed.
func (r *Register[T]) refresh(id mesh.ID) {
	if r.changed == nil {
		return
	}
	r.facts.mu.Lock()
	before, now := r.newest[id], Fact[T]{}
	if r.facts.o.Dataplane(id) != nil {
		now = r.newestOf(id, r.facts.Said(id))
	}
	if r.kind.Same != nil && r.kind.Same(now.Said, Fact[T]{}.Said) {
		now = Fact[T]{}
	}
	put(r.newest, id, now)
	r.facts.mu.Unlock()
	if !r.kind.same(before, now) {
		r.changed(id)
	}
}

func (r *Register[T]) observe(id mesh.ID, said []Said, o *mesh.Observation) {
	if r.kind.Observe != nil {
		r.kind.Observe(o, r.newestOf(id, said).Said)
	}
}

// Tell adds this replica's own fact of a proxy to m, and returns false without one.
func (r *Register[T]) Tell(id mesh.ID, m *peerv1.Proxy) bool {
	own := r.Own(id)
	if !own.Known() {
		return false
	}
	if r.kind.Tell != nil {
		own.Said = r.kind.Tell(own.Said, r.facts.o.Now().Sub(own.At))
	}
	*r.kind.Field(m) = own.Said
	return true
}

// ids adds the proxies with an own fact. The caller holds Facts.mu.
func (r *Register[T]) ids(all map[mesh.ID]bool) {
	for id := range r.own {
		all[id] = true
	}
}

// load restores the stored facts, before other methods are called.
func (r *Register[T]) load() error {
	if r.kind.Keep == nil {
		return nil
	}
	ids, err := r.records.All()
	for _, id := range ids {
		data, err := r.records.Read(id)
		var said T
		if err == nil {
			said, err = r.kind.Keep.Unmarshal(data)
		}
		if err != nil {
			meshName, name := mesh.SplitID(id)
			r.kind.Keep.Unread(r.facts.o.Logger.With("mesh", meshName, "proxy", name), err)
			continue
		}
		r.own[id] = Fact[T]{Said: said}
		r.facts.Heard(id)
	}
	return err
}

// keep stores the current fact, which may be newer than the fact of the change that calls keep.
func (r *Register[T]) keep(id mesh.ID) error {
	if r.kind.Keep == nil {
		return nil
	}
	r.writing.Lock()
	defer r.writing.Unlock()
	data, err := r.kind.Keep.Marshal(r.Own(id).Said)
	switch {
	case err != nil:
	case data == nil:
		err = r.records.Remove(id)
	default:
		err = r.records.Write(id, data)
	}
	if err != nil {
		return fmt.Errorf("write %s of proxy %s: %w", r.kind.Name, id, err)
	}
	return nil
}
