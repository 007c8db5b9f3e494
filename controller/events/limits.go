package events

import (
	"log/slog"
	"sync"
	"time"

	"golang.org/x/time/rate"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/cache"
)

// Limits on events of one program. client-go keeps each event in memory for 6 to 12 minutes, so that equal ones become a series: these limits bound
// that, too.
const (
	// An application that flaps repeats one event for ever: two make the series, and then it is enough to know that it goes on.
	seriesBurst = 2
	seriesEvery = time.Minute
	// An agent chooses some words of the events about its pod, and so could make any number of series.
	objectBurst = 30
	objectEvery = 10 * time.Second
	// All objects together: what is beyond would be too much for the API server.
	eventsPerSecond = 20
	eventsBurst     = 200
	// A namespace with fewer than these has a place among those that are kept from all others: one with failing pods must not silence the rest.
	// Without others one has all but these, and so as many as eventsPerSecond.
	namespaceBurst = 20
	namespaceEvery = time.Second
	eventsKept     = 100
	// remembered is how many series, and how many objects, have a limiter, for longer than it takes until that has forgotten everything.
	remembered  = 4096
	rememberFor = objectBurst * objectEvery
)

// limits decide which events are written. They may be used from any goroutine.
type limits struct {
	mu              sync.Mutex
	series, objects buckets
	namespaces      buckets
	all             *rate.Limiter

	log                     *slog.Logger
	warnedObject, warnedAll *rate.Limiter
}

// object identifies what events are about: not all have a UID.
type object struct {
	kind, namespace, name string
	uid                   types.UID
}

// series are events that become one.
type series struct {
	object

	part, reason, action string
}

func newLimits(log *slog.Logger) *limits {
	oncePerMinute := func() *rate.Limiter { return rate.NewLimiter(rate.Every(time.Minute), 1) }
	return &limits{
		series: newBuckets(seriesEvery, seriesBurst), objects: newBuckets(objectEvery, objectBurst), all: rate.NewLimiter(eventsPerSecond, eventsBurst+eventsKept),
		namespaces: newBuckets(namespaceEvery, namespaceBurst),
		log:        log, warnedObject: oncePerMinute(), warnedAll: oncePerMinute(),
	}
}

// buckets are rate limiters by key, of the keys that were used last.
type buckets struct {
	cache *cache.LRUExpireCache
	every time.Duration
	burst int
}

func newBuckets(every time.Duration, burst int) buckets {
	return buckets{cache.NewLRUExpireCache(remembered), every, burst}
}

// get returns the limiter of a key, nil if there is none.
func (b *buckets) get(key any) *rate.Limiter {
	known, _ := b.cache.Get(key)
	l, _ := known.(*rate.Limiter)
	return l
}

// take takes one of a key, and returns false if there is none left.
func (b *buckets) take(key any) bool {
	l := b.get(key)
	if l == nil {
		l = rate.NewLimiter(rate.Every(b.every), b.burst)
	}
	b.cache.Add(key, l, rememberFor) // from now on
	return l.Allow()
}

// allow reports whether an event is to be written. The log says when one is not that is no repetition, at most once a minute.
func (l *limits) allow(e *Event) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	of := object{e.Kind, e.Namespace, e.Name, e.UID}
	key := series{of, e.FieldPath, e.Reason, e.Action}
	// A series that is new takes no place before its object is let through: those of one object would displace all others.
	known := l.series.get(key) != nil
	if known && !l.series.take(key) {
		return false
	}
	if !l.objects.take(of) {
		if l.warnedObject.Allow() {
			l.log.Warn("events dropped: there are too many of one object", "kind", e.Kind, "namespace", e.Namespace, "name", e.Name, "reason", e.Reason)
		}
		return false
	}
	if !known {
		l.series.take(key)
	}
	if few := l.namespaces.take(e.Namespace); !few && l.all.Tokens() < eventsKept+1 || !l.all.Allow() {
		if l.warnedAll.Allow() {
			l.log.Warn("events dropped: there are too many", "perSecond", eventsPerSecond, "namespace", e.Namespace, "reason", e.Reason)
		}
		return false
	}
	return true
}
