// Package watch keeps a small record of each object of one kind in the API server. Informers would keep whole objects:
// a pod with its status takes thirty times as much memory.
package watch

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"

	"github.com/sonde-mesh/sonde/internal/run"
)

// Key identifies an object of one kind.
type Key = types.NamespacedName

// Object is a pointer to a type of the API.
type Object interface {
	metav1.Object
	runtime.Object
}

// Kind is a kind of objects, and how to make its records.
type Kind[O Object, R any] struct {
	// Client of the kind's API group, without a timeout, because of watches.
	Client rest.Interface
	// Resource is the plural name, such as pods.
	Resource string
	// Namespace of the objects. Default all.
	Namespace string
	// Labels is a label selector, such as kuma.io/mesh. Default all objects.
	Labels string
	// Fields is a field selector, such as reason=FailedCreate. Default all objects.
	Fields string
	// New is an empty object of the type.
	New O
	// Record returns the record of an object, and false for an object without one. The record must not keep the object
	// alive.
	Record func(O) (R, bool)
	// Changed is called after a record was added (before is nil), changed or removed (now is nil), in order. It must
	// not block. It is not called for the many changes of objects that do not change their records.
	Changed func(key Key, before, now *R)
	// Synced is called once, after Changed was called for all objects of the first list.
	Synced func()
	// Share bounds the records of one namespace. Default: no bound.
	Share Share[R]
}

// Store has the records of one kind. It implements cache.TransformingStore.
type Store[O Object, R any] struct {
	kind Kind[O, R]

	writing sync.Mutex // held during changes of records and calls of Changed
	mu      sync.RWMutex
	records map[Key]*R
	missing error // why the first list is incomplete, nil once it is complete
	lost    Loss
	// newest is Revision.Newest; reflector has Revision.Seen.
	newest    uint64
	reflector *cache.Reflector
	// complained is when the loss of the API server was last logged.
	complained time.Time

	shares map[string]*share // by namespace
	// listed are the shares of a list that is being read, until it replaces the records.
	listed map[string]*share
	// roomy are the namespaces with room for an object that was beyond their share. told wakes fill when there is one.
	roomy map[string]struct{}
	told  run.Signal
}

// Loss is since when the API server has been disconnected, and why. It is zero while a watch is open.
type Loss struct {
	Since time.Time
	Err   error
}

// First returns the earliest loss, or zero.
func First(losses ...Loss) Loss {
	var first Loss
	for _, l := range losses {
		if l.Err != nil && (first.Err == nil || l.Since.Before(first.Since)) {
			first = l
		}
	}
	return first
}

// Revision is how far a store has read the objects of its kind, in resourceVersions. These are growing numbers that are
// comparable between clients of one API server. Both fields are 0 before the first list, and if the API server uses
// other versions.
// Source: https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions
type Revision struct {
	// Newest is the resourceVersion of the newest creation, change or deletion. A client that has not seen it is
	// behind.
	Newest uint64
	// Seen is the resourceVersion up to which the store has seen everything, even if nothing changed.
	Seen uint64
}

// New returns an empty store. Run fills it.
func New[O Object, R any](k Kind[O, R]) *Store[O, R] {
	if k.Share.Takes == nil {
		k.Share.Takes = func(r *R) int { return Size(r) }
	}
	return &Store[O, R]{
		kind: k, records: map[Key]*R{}, missing: errors.New("not read yet"),
		shares: map[string]*share{}, listed: map[string]*share{}, roomy: map[string]struct{}{}, told: run.NewSignal(),
	}
}

// Back-off of a lost watch. client-go's back-off reaches 30 to 60 s, to protect API servers with thousands of kubelets,
// and endpoints would stay outdated for as long after an outage. The control plane has few replicas, with a handful of
// watches each.
const (
	backoffFirst = 500 * time.Millisecond
	backoffLast  = 2 * time.Second
)

// Run follows the API server until ctx ends, and then returns nil. It retries with back-off while the API server is
// disconnected; the records stay meanwhile.
func (s *Store[O, R]) Run(ctx context.Context) error {
	if s.kind.Share.Bytes > 0 {
		ended := make(chan struct{})
		defer func() { <-ended }()
		go func() {
			defer close(ended)
			s.fill(ctx)
		}()
	}
	selected := func(o *metav1.ListOptions) { o.LabelSelector, o.FieldSelector = s.kind.Labels, s.kind.Fields }
	all := cache.NewFilteredListWatchFromClient(s.kind.Client, s.kind.Resource, s.kind.Namespace, selected)
	noting := &cache.ListWatch{
		ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
			if o.Continue == "" {
				s.beginList()
			}
			list, err := all.ListWithContext(ctx, o)
			s.note(err)
			return list, err //nolint:wrapcheck // the reflector knows the API server's errors
		},
		WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
			if o.SendInitialEvents != nil && *o.SendInitialEvents {
				s.beginList()
			}
			w, err := all.WatchWithContext(ctx, o)
			s.note(err)
			return w, err //nolint:wrapcheck // the same
		},
	}
	r := cache.NewReflectorWithOptions(cache.ToListWatcherWithWatchListSemantics(noting, s.kind.Client), s.kind.New, s,
		cache.ReflectorOptions{
			Name:    s.kind.Resource,
			Backoff: &wait.Backoff{Duration: backoffFirst, Cap: backoffLast, Steps: 3, Factor: 2, Jitter: 1},
		})
	s.mu.Lock()
	s.reflector = r
	s.mu.Unlock()
	r.RunWithContext(s.quiet(ctx))
	return nil
}

// note records the last error of a request. A watch that ends is reopened at once, so the API server counts as lost
// from the first request that fails.
func (s *Store[O, R]) note(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case err == nil:
		s.lost = Loss{}
		return
	case s.lost.Err == nil:
		s.lost.Since = time.Now()
	}
	s.lost.Err = fmt.Errorf("%s: %w", s.kind.Resource, err)
	if s.missing != nil {
		s.missing = fmt.Errorf("not read yet: %w", err)
	}
}

// Lost returns since when the API server has been disconnected, zero if it is connected. Records stay meanwhile.
func (s *Store[O, R]) Lost() Loss {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.lost
}

// Revision returns how far the store has read.
func (s *Store[O, R]) Revision() Revision {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.missing != nil || s.reflector == nil {
		return Revision{}
	}
	return Revision{Newest: s.newest, Seen: number(s.reflector.LastSyncResourceVersion())}
}

// Missing returns why the first list is incomplete, nil once it is complete.
func (s *Store[O, R]) Missing() error {
	s.mu.RLock()
	defer s.mu.RUnlock()
	if s.missing == nil {
		return nil
	}
	return fmt.Errorf("%s: %w", s.kind.Resource, s.missing)
}

// Get returns the record of an object, or nil. The caller must not change it.
func (s *Store[O, R]) Get(key Key) *R {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.records[key]
}

// Keys returns the keys of all records, in no order.
func (s *Store[O, R]) Keys() []Key {
	s.mu.RLock()
	defer s.mu.RUnlock()
	keys := make([]Key, 0, len(s.records))
	for key := range s.records {
		keys = append(keys, key)
	}
	return keys
}

// Len returns the number of records.
func (s *Store[O, R]) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.records)
}

// trimmed replaces an object in a list, so that whole lists are never in memory.
type trimmed[R any] struct {
	metav1.ObjectMeta // only the name, age and resourceVersion
	record            *R
	takes             int  // cost in the namespace's share
	given             bool // the record is from Share.Beyond
	again             bool // from a read of fill, not from the watch
}

func (t *trimmed[R]) key() Key { return Key{Namespace: t.Namespace, Name: t.Name} }

// Transformer implements cache.TransformingStore. It is called for each object of a list in turn, so that the share of
// a namespace is bounded even while the list is being read.
func (s *Store[O, R]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		t, err := s.trim(obj)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.claim(true, t, func(m *member) {
			if other, is := m.listed.(*trimmed[R]); is {
				s.giveUp(other)
			}
		})
		return t, nil
	}
}

func (s *Store[O, R]) trim(obj any) (*trimmed[R], error) {
	switch obj := obj.(type) {
	case *trimmed[R]:
		return obj, nil
	case O:
		t := &trimmed[R]{ObjectMeta: metav1.ObjectMeta{
			Namespace: obj.GetNamespace(), Name: obj.GetName(), ResourceVersion: obj.GetResourceVersion(),
			CreationTimestamp: obj.GetCreationTimestamp(),
		}}
		if r, ok := s.kind.Record(obj); ok {
			t.record = &r
			if s.kind.Share.Bytes > 0 {
				t.takes = s.kind.Share.Takes(t.record)
			}
		}
		return t, nil
	}
	return nil, fmt.Errorf("watch %s: got a %T", s.kind.Resource, obj)
}

// Add implements cache.ReflectorStore.
func (s *Store[O, R]) Add(obj any) error {
	t, err := s.trim(obj)
	if err == nil {
		s.put(t)
		s.saw(t.ResourceVersion)
	}
	return err
}

// Update implements cache.ReflectorStore.
func (s *Store[O, R]) Update(obj any) error { return s.Add(obj) }

// Delete implements cache.ReflectorStore.
func (s *Store[O, R]) Delete(obj any) error {
	t, err := s.trim(obj)
	if err == nil {
		t.record = nil
		s.put(t)
		s.saw(t.ResourceVersion) // the resourceVersion of the deletion
	}
	return err
}

// saw records the resourceVersion of an event after the records have it.
func (s *Store[O, R]) saw(version string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.newest = max(s.newest, number(version))
}

// number returns a resourceVersion as a number, 0 if it is not a number.
func number(version string) uint64 {
	n, err := strconv.ParseUint(version, 10, 64)
	if err != nil {
		return 0
	}
	return n
}

// Replace implements cache.ReflectorStore: it gets all objects, at the start and after a watch has lost events.
func (s *Store[O, R]) Replace(list []any, version string) error {
	all, there, newest := make([]*trimmed[R], 0, len(list)), make(map[Key]bool, len(list)), uint64(0)
	for _, obj := range list {
		t, err := s.trim(obj)
		if err != nil {
			return err
		}
		all, there[t.key()], newest = append(all, t), true, max(newest, number(t.ResourceVersion))
	}
	s.forgetShares(there)
	for _, t := range all {
		s.put(t)
	}
	for _, key := range s.Keys() {
		if !there[key] {
			s.put(&trimmed[R]{ObjectMeta: metav1.ObjectMeta{Namespace: key.Namespace, Name: key.Name}})
		}
	}
	s.mu.Lock()
	clear(s.listed)
	first := s.missing != nil
	if s.newest > number(version) { // from a state that etcd has lost
		s.newest = 0
	}
	s.missing, s.newest = nil, max(s.newest, newest)
	s.mu.Unlock()
	s.told.Set()
	if first && s.kind.Synced != nil {
		s.kind.Synced()
	}
	return nil
}

// Resync implements cache.ReflectorStore.
func (s *Store[O, R]) Resync() error { return nil }

// put replaces a record, or removes it if t has none, and removes others that no longer count. It reports whether the
// object is at least as new as the last one seen.
func (s *Store[O, R]) put(t *trimmed[R]) bool {
	s.writing.Lock()
	defer s.writing.Unlock()
	type change struct {
		key         Key
		before, now *R
	}
	var changes []change
	replace := func(key Key, now *R) {
		before := s.records[key]
		if before == now || before != nil && now != nil && reflect.DeepEqual(before, now) {
			return
		}
		if now == nil {
			delete(s.records, key)
		} else {
			s.records[key] = now
		}
		changes = append(changes, change{key, before, now})
	}
	s.mu.Lock()
	if t.again && s.isOlder(t) {
		s.mu.Unlock()
		return false
	}
	s.claim(false, t, func(m *member) {
		key := Key{Namespace: t.Namespace, Name: m.name}
		beyond := s.kind.Share.Beyond(s.records[key])
		replace(key, &beyond)
	})
	replace(t.key(), t.record)
	s.mu.Unlock()
	for _, c := range changes {
		s.kind.Changed(c.key, c.before, c.now)
	}
	return true
}
