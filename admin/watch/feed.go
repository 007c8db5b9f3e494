package watch

import (
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

const (
	// readEvery is the least time between two readings. If they take long, a pause of idleShare times as long follows, so
	// that viewers of a large mesh cost at most a tenth of a processor, but at most maxPause.
	readEvery = time.Second
	idleShare = 9
	maxPause  = 10 * time.Second
	// costStep is by how much feed.cost grows with a longer reading, beside a quarter.
	costStep = 10 * time.Millisecond
	// readLimit bounds a reading.
	readLimit = 10 * time.Second
)

// section is short for the sections of a request.
type section = adminv1.WatchRequest_Section

// reading is the state of the sections that are watched.
type reading struct {
	began, next time.Time
	sections    map[section]*snapshot
}

// feed reads sections for all viewers. It has no goroutine: the first viewer that needs a reading makes it, and the
// others get the same one.
type feed struct {
	begin func(before Calls) Calls
	ready func() error
	hangs *hangs

	turn chan struct{} // has room while no viewer reads

	mu      sync.Mutex
	watched map[section]int // viewers by section
	last    reading
	calls   Calls // of the last reading, nil without a viewer
	// cost is how long readings take. It grows slowly, since a single long one has waited for a processor.
	cost time.Duration
}

func newFeed(stopping context.Context, o *Options) *feed {
	return &feed{
		begin: o.Calls, ready: o.Ready, hangs: &hangs{stopping: stopping, ask: o.Unresponsive},
		turn: make(chan struct{}, 1), watched: map[section]int{},
	}
}

// join counts a viewer of sections until leave is called. Sections without a viewer are dropped.
func (f *feed) join(sections []section) (leave func()) {
	count := func(n int) {
		f.mu.Lock()
		defer f.mu.Unlock()
		for _, s := range sections {
			if f.watched[s] += n; f.watched[s] == 0 {
				delete(f.watched, s)
				f.last.sections = maps.Clone(f.last.sections) // viewers read it
				delete(f.last.sections, s)
			}
		}
		if len(f.watched) == 0 {
			f.calls, f.cost = nil, 0
		}
	}
	count(1)
	return func() { count(-1) }
}

// read returns the current reading, with at least these sections. It waits for a viewer that makes the reading. The
// error is the context's.
func (f *feed) read(ctx context.Context, sections []section) (reading, error) {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		return reading{}, ctx.Err()
	}
	defer func() { <-f.turn }()
	before, watched := f.due(sections)
	if len(watched) == 0 {
		return before, nil
	}
	// It is for others, too.
	shared, cancel := context.WithTimeout(context.WithoutCancel(ctx), readLimit)
	defer cancel()
	began, calls := time.Now(), f.begin(f.callsBefore())
	now, took := f.readAll(shared, began, calls, watched, before.sections)
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.watched) > 0 {
		f.calls = calls
	}
	maps.DeleteFunc(now, func(s section, _ *snapshot) bool { return f.watched[s] == 0 })
	if f.cost == 0 {
		f.cost = took
	}
	f.cost = min(took, f.cost+f.cost/4+costStep)
	f.last = reading{
		began: began, next: began.Add(max(readEvery, took+min(idleShare*f.cost, maxPause))), sections: now,
	}
	return f.last, nil
}

func (f *feed) callsBefore() Calls {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.calls
}

// due returns the last reading and, if the next one is due or a section is missing, all watched sections: a reading has
// the same time for all.
func (f *feed) due(sections []section) (before reading, watched []section) {
	f.mu.Lock()
	defer f.mu.Unlock()
	missing := func(s section) bool { return f.last.sections[s] == nil }
	if time.Now().Before(f.last.next) && !slices.ContainsFunc(sections, missing) {
		return f.last, nil
	}
	return f.last, slices.Collect(maps.Keys(f.watched))
}

// readAll reads sections. It reads lists of objects one after the other, so that a large mesh takes one processor at
// most, and returns how long that took, without the waits for agents and other replicas.
func (f *feed) readAll(
	ctx context.Context, began time.Time, calls Calls, sections []section, before map[section]*snapshot,
) (now map[section]*snapshot, took time.Duration) {
	now = map[section]*snapshot{}
	var mu sync.Mutex
	var waited time.Duration
	read := func(s section) {
		l, err := f.list(ctx, calls, s)
		if err == nil && s == adminv1.WatchRequest_PROXIES {
			waited = f.hangs.mark(ctx, l)
		}
		var is *snapshot
		if err == nil {
			is, err = before[s].next(l)
		}
		if err != nil {
			is = &snapshot{failed: status.Convert(err)}
		}
		mu.Lock()
		defer mu.Unlock()
		now[s] = is
	}
	var apart sync.WaitGroup
	for _, s := range sections {
		if kinds[s].apart {
			apart.Go(func() { read(s) })
		}
	}
	for _, s := range sections {
		if !kinds[s].apart {
			read(s)
		}
	}
	took = time.Since(began) - waited - calls.Waited()
	apart.Wait()
	return now, took
}

// list reads one section.
func (f *feed) list(ctx context.Context, calls Calls, s section) (list, error) {
	if !kinds[s].apart {
		if err := f.ready(); err != nil { // rather than wait for it, as the call does
			return list{}, err
		}
	}
	return kinds[s].read(ctx, calls)
}
