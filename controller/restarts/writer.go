package restarts

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Limits on a leader's writes. writesPerSecond bounds the requests in any second: the burst and the tokens that are
// refilled within that second.
const (
	writesPerSecond = 50
	writesBurst     = 5
	writesAtOnce    = 5
	// writeTimeout of one request.
	writeTimeout = 10 * time.Second
	// pauseAfterFailure is the pause after the API server has not answered. pauseAfterRefusal is the pause before a
	// rejected write is repeated.
	pauseAfterFailure = time.Second
	pauseAfterRefusal = 10 * time.Second
)

// class of a write: earlier classes go first.
type class int

const (
	classGrant class = iota
	classStatus
	classCondition
	classDelete
	classes
)

// writeID identifies the target of a write: of several waiting writes with the same ID, only the newest is sent.
type writeID struct {
	class  class
	object watch.Key
}

// write is a waiting write.
type write struct {
	writeID

	send func(context.Context) error
	// tried says that the write was sent, and that its result is unknown.
	tried bool
}

// result is the final result of a write.
type result struct {
	writeID

	at  time.Time
	err error
}

// writer sends a leader's writes, a few at once and with a limited rate. The number of pods and grants bounds its
// queue. When it ends, it drops unsent writes: the next leader determines them anew.
type writer struct {
	log   *slog.Logger
	loop  *heartbeat.Loop
	ended func() // called after each result; must return at once

	limit    *rate.Limiter
	complain rate.Sometimes
	ready    run.Signal

	mu      sync.Mutex
	waiting map[writeID]*write
	order   [classes][]writeID // of waiting
	flying  map[writeID]bool
	turns   map[string]int // by namespace with waiting writes: namespaces with a lower turn go first
	turn    int
	paused  [classes]time.Time
	results []result
}

func newWriter(log *slog.Logger, loop *heartbeat.Loop, ended func()) *writer {
	return &writer{
		log: log, loop: loop, ended: ended, limit: rate.NewLimiter(writesPerSecond-writesBurst, writesBurst),
		complain: rate.Sometimes{Interval: complainEvery},
		ready:    run.NewSignal(), waiting: map[writeID]*write{}, flying: map[writeID]bool{}, turns: map[string]int{},
	}
}

// put queues a write. It replaces a waiting write with the same ID. It returns at once.
func (w *writer) put(id writeID, send func(context.Context) error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enqueue(&write{writeID: id, send: send})
}

// enqueue adds a write to the queue. The caller holds mu.
func (w *writer) enqueue(next *write) {
	before := w.waiting[next.writeID]
	w.waiting[next.writeID] = next
	if before == nil {
		w.order[next.class] = append(w.order[next.class], next.writeID)
	}
	w.ready.Set()
}

// withdraw removes a waiting write, and reports whether it did. A write that was sent, and whose result is unknown, is
// removed only if tried is set.
func (w *writer) withdraw(id writeID, tried bool) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	waits := w.waiting[id]
	if waits == nil || waits.tried && !tried {
		return false
	}
	delete(w.waiting, id)
	w.order[id.class] = slices.DeleteFunc(w.order[id.class], func(other writeID) bool { return other == id })
	return true
}

// waits reports whether a write with that ID waits to be sent.
func (w *writer) waits(id writeID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.waiting[id] != nil
}

// busy reports whether a write with that ID waits or is in flight.
func (w *writer) busy(id writeID) bool { return w.waits(id) || w.flies(id) }

// flies reports whether a write with that ID is in flight, or takeResults has not returned its result yet: until then
// the caller does not know whether it must write again.
func (w *writer) flies(id writeID) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.flying[id] || slices.ContainsFunc(w.results, func(r result) bool { return r.writeID == id })
}

// takeResults returns the results since the last call.
func (w *writer) takeResults() []result {
	w.mu.Lock()
	defer w.mu.Unlock()
	all := w.results
	w.results = nil
	return all
}

// run sends writes until ctx ends. Requests have a timeout, so loop only reports a request that ignores it.
func (w *writer) run(ctx context.Context) {
	var flights sync.WaitGroup
	defer flights.Wait()
	slots := make(chan struct{}, writesAtOnce)
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.ready:
		}
		for w.sendNext(ctx, slots, &flights) {
		}
	}
}

// sendNext sends the most important write as soon as the limits allow. It returns false if nothing can be sent until
// ready receives again.
func (w *writer) sendNext(ctx context.Context, slots chan struct{}, flights *sync.WaitGroup) bool {
	wait, there := w.pause()
	if !there {
		return false
	}
	pause := time.NewTimer(wait)
	defer pause.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-w.ready: // another write may be due earlier
		if wait > 0 {
			return true
		}
	case <-pause.C:
	}
	w.loop.Begin()
	defer w.loop.End()
	select {
	case <-ctx.Done():
		return false
	case slots <- struct{}{}:
	}
	if w.limit.Wait(ctx) != nil {
		return false
	}
	next := w.take()
	if next == nil {
		<-slots
		return true
	}
	flights.Go(func() {
		defer func() { <-slots }()
		within, cancel := context.WithTimeout(ctx, writeTimeout)
		defer cancel()
		w.finish(ctx, next, next.send(within))
	})
	return true
}

// pause returns the time until a write may be sent. It returns false if no write waits, or if each waits for an earlier
// one in flight.
func (w *writer) pause() (time.Duration, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	shortest, there := time.Duration(0), false
	for c := range classes {
		if !slices.ContainsFunc(w.order[c], func(id writeID) bool { return !w.flying[id] }) {
			continue
		}
		if wait := max(w.paused[c].Sub(now), 0); !there || wait < shortest {
			shortest, there = wait, true
		}
	}
	return shortest, there
}

// take returns the most important write that may be sent now, or nil. Namespaces take turns within a class, so that a
// write does not wait for all writes of another namespace.
func (w *writer) take() *write {
	w.mu.Lock()
	defer w.mu.Unlock()
	now := time.Now()
	for c := range classes {
		if now.Before(w.paused[c]) {
			continue
		}
		i := w.nextOf(c)
		if i < 0 {
			continue
		}
		id := w.order[c][i]
		if w.turn++; len(w.waiting) == 1 {
			clear(w.turns)
		}
		w.turns[id.object.Namespace] = w.turn
		next := w.waiting[id]
		w.order[c] = slices.Delete(w.order[c], i, i+1)
		delete(w.waiting, id)
		w.flying[id] = true
		return next
	}
	return nil
}

// nextOf returns the index in order of the next write of a class, or -1. The caller holds mu.
func (w *writer) nextOf(c class) int {
	next := -1
	for i, id := range w.order[c] {
		if !w.flying[id] && (next < 0 || w.turns[id.object.Namespace] < w.turns[w.order[c][next].object.Namespace]) {
			next = i
		}
	}
	return next
}

// finish handles the result of a write. If the result of creating a grant is unknown, the grant is sent again, and
// counts against the budget until then.
func (w *writer) finish(ctx context.Context, sent *write, err error) {
	refused := isRefused(err)
	w.mu.Lock()
	delete(w.flying, sent.writeID)
	now := time.Now()
	switch {
	case err != nil && !refused:
		for c := range classes {
			w.paused[c] = now.Add(pauseAfterFailure)
		}
		if sent.tried = true; sent.class == classGrant && w.waiting[sent.writeID] == nil {
			w.enqueue(sent)
		}
	case refused && sent.class != classGrant:
		w.paused[sent.class] = now.Add(pauseAfterRefusal)
	}
	if err == nil || refused {
		w.results = append(w.results, result{sent.writeID, now, err})
	}
	waiting := len(w.waiting)
	w.mu.Unlock()
	w.ready.Set()
	w.ended()
	if err != nil && ctx.Err() == nil && !apierrors.IsAlreadyExists(err) && !isForbiddenCondition(sent.class, err) {
		w.complain.Do(func() {
			w.log.WarnContext(ctx, "failed to write restart objects, retrying",
				"namespace", sent.object.Namespace,
				"name", sent.object.Name, "waiting", waiting, "err", err)
		})
	}
}

// isForbiddenCondition reports whether the right to write conditions of pods is missing, as before Kubernetes 1.30.
func isForbiddenCondition(c class, err error) bool {
	return c == classCondition && apierrors.IsForbidden(err)
}

// isRefused reports whether an error means that nothing was written, and that a retry would not help.
func isRefused(err error) bool {
	var status apierrors.APIStatus
	if !errors.As(err, &status) {
		return false
	}
	code := status.Status().Code
	return code >= http.StatusBadRequest && code < http.StatusInternalServerError && code != http.StatusRequestTimeout &&
		code != http.StatusTooManyRequests
}
