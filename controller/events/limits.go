package events

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Limits on events of one program. client-go keeps each event in memory for 6 to 12 minutes, to make series of equal
// ones: these limits bound that memory, too.
const (
	// A flapping application repeats one event forever. Two events make a series, and more add no information.
	seriesBurst = 2
	seriesEvery = time.Minute
	// An agent chooses parts of the events about its pod, and so could start any number of series.
	objectBurst = 30
	objectEvery = 10 * time.Second
	// The limit for all objects together protects the API server.
	eventsPerSecond = 20
	eventsBurst     = 200
	// Each namespace has a reserve of this size that other namespaces cannot use, so that a namespace with failing pods
	// does not silence the rest. A single namespace may use all but the reserves, which is almost eventsPerSecond.
	namespaceBurst = 20
	namespaceEvery = time.Second
	eventsKept     = 100
	// remembered is the number of series, and of objects, with a limiter. A limiter is kept until it would be full again.
	remembered  = 4096
	rememberFor = objectBurst * objectEvery
)

// limits decide which events are written. They are safe for concurrent use.
type limits struct {
	mu              sync.Mutex
	series, objects buckets
	namespaces      buckets
	all             *rate.Limiter

	log                     *slog.Logger
	warnedObject, warnedAll *rate.Limiter
}

// object identifies an event's object; not all objects have a UID.
type object struct {
	kind, namespace, name string
	uid                   types.UID
}

// series identifies events that become one series.
type series struct {
	object

	part, reason, action string
}

func newLimits(log *slog.Logger) *limits {
	oncePerMinute := func() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Minute), 1) }
	return &limits{
		series: newBuckets(seriesEvery, seriesBurst), objects: newBuckets(objectEvery, objectBurst),
		all:        rate.NewLimiter(eventsPerSecond, eventsBurst+eventsKept),
		namespaces: newBuckets(namespaceEvery, namespaceBurst),
		log:        log, warnedObject: oncePerMinute(), warnedAll: oncePerMinute(),
	}
}

// buckets are rate limiters by key, for the most recently used keys.
type buckets struct {
	cache *cache.LRUExpireCache
	every time.Duration
	burst int
}

func newBuckets(every time.Duration, burst int) buckets {
	return buckets{cache.NewLRUExpireCache(remembered), every, burst}
}

// get returns the limiter of a key, or nil.
func (b *buckets) get(key any) *rate.Limiter {
	known, _ := b.cache.Get(key)
	l, _ := known.(*rate.Limiter)
	return l
}

// take takes one token of a key, and returns false if it has no tokens left.
func (b *buckets) take(key any) bool {
	l := b.get(key)
	if l == nil {
		l = rate.NewLimiter(rate.Every(b.every), b.burst)
	}
	b.cache.Add(key, l, rememberFor) // restarts its expiry
	return l.Allow()
}

// allow reports whether an event may be written. It logs dropped events, except repetitions, at most once a minute.
func (l *limits) allow(e *Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := object{e.Kind, e.Namespace, e.Name, e.UID}
	key := series{of, e.FieldPath, e.Reason, e.Action}
	// Add a new series only after checking its object's limit: otherwise one object could displace all other series.
	known := l.series.get(key) != nil
	if known && !l.series.take(key) {
		return false
	}
	if !l.objects.take(of) {
		if l.warnedObject.Allow() {
			l.log.Warn("dropping events, too many about one object",
				"kind", e.Kind, "namespace", e.Namespace, "name", e.Name, "reason", e.Reason)
		}
		return false
	}
	if !known {
		l.series.take(key)
	}
	if few := l.namespaces.take(e.Namespace); !few && l.all.Tokens() < eventsKept+1 || !l.all.Allow() {
		if l.warnedAll.Allow() {
			l.log.Warn("dropping events, too many in total", "perSecond", eventsPerSecond, "namespace", e.Namespace,
				"reason", e.Reason)
		}
		return false
	}
	return true
}
