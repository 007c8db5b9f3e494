package restarts

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// Lead decides after changes, at most once per decideEvery, and at least once per decideAnyway, since grants expire.
	decideEvery  = 200 * time.Millisecond
	decideAnyway = 5 * time.Second
	// complainEvery is the interval of logs about failed reads.
	complainEvery = 30 * time.Second
	// readTimeout bounds reading all grants.
	readTimeout = 30 * time.Second
	// keepGrants is how long an ended grant is kept.
	keepGrants = time.Hour
)

// Lead decides and writes its decisions until ctx ends, and then returns nil. Only the leader may run it; its grants
// carry epoch.
func (r *Restarts) Lead(ctx context.Context, epoch int64) error {
	l := newLeader(r, epoch)
	if !l.await(ctx, l.read) {
		return nil
	}
	defer r.round.Store(nil)
	var tasks sync.WaitGroup
	defer tasks.Wait()
	tasks.Go(func() { l.writer.run(ctx) })
	tasks.Go(func() { l.countMissed(ctx) })
	tasks.Go(func() { l.status.run(ctx) })
	tasks.Go(func() { l.unheld.run(ctx) })
	l.run(ctx)
	return nil
}

// Round is the result of the leader's latest decisions.
type Round struct {
	At    time.Time
	Epoch int64
	// Settings of this round.
	Settings restartbudget.Settings
	// Hold is how failures are held.
	Hold mesh.LivenessHold
	restartbudget.Result
	// Unheld are the nodes with unheld restarts since this replica began to lead.
	Unheld []UnheldNode
}

// Round returns the latest round of this replica, nil if it does not lead or has not decided yet. The caller must not
// change it.
func (r *Restarts) Round() *Round { return r.round.Load() }

// leader is the state of Restarts at the leader.
type leader struct {
	*Restarts
	epoch  int64
	began  time.Time
	state  *restartbudget.State
	writer *writer
	report *report
	status *budgetStatus
	wrong  wrongAnnotations
	unheld *unheld

	// released are the grants that were passed to state as released.
	released map[watch.Key]bool
	creating map[writeID]creation
	refused  map[restartbudget.ContainerKey]time.Time // when the API server rejected a grant
	// known are the grants at the start. Grants that an earlier leader writes later are late, as lateOf's are.
	known map[watch.Key]bool
	late  map[restartbudget.GrantID]bool
	// judged are changed grants until a watch has the change: by then their containers may have another grant.
	judged map[restartbudget.GrantID]restartbudget.Grant
	// sent are the last sent statuses of grants, taken those that the API server accepted, until a watch has them.
	sent, taken map[watch.Key]sentStatus
	// instances are the container instances of open grants when first seen.
	instances map[restartbudget.GrantID]uint64
	// conditions is the last write of each pod's condition.
	conditions   map[watch.Key]time.Time
	noConditions bool // the right to write them is missing
}

// creation is a grant whose object does not exist yet.
type creation struct {
	grant restartbudget.Grant
	pod   watch.Key
}

func newLeader(r *Restarts, epoch int64) *leader {
	l := &leader{
		Restarts: r, epoch: epoch, writer: newWriter(r.o.Logger, r.o.Writes, r.wakeLead), report: newReport(r),
		status: newBudgetStatus(r), creating: map[writeID]creation{},
		refused: map[restartbudget.ContainerKey]time.Time{}, known: map[watch.Key]bool{},
		late: map[restartbudget.GrantID]bool{}, judged: map[restartbudget.GrantID]restartbudget.Grant{},
		sent: map[watch.Key]sentStatus{}, taken: map[watch.Key]sentStatus{}, conditions: map[watch.Key]time.Time{},
	}
	l.unheld = newUnheld(r, func(id restartbudget.ContainerKey) (restartbudget.Grant, bool) { return l.state.Last(id) })
	return l
}

// read restores the state from all grants.
func (l *leader) read(ctx context.Context) error {
	if err := l.missing(); err != nil {
		return err
	}
	within, cancel := context.WithTimeout(ctx, readTimeout)
	defer cancel()
	objects, err := listGrants(within, l.o.Writing)
	if err != nil {
		return err
	}
	all := map[watch.Key]*grant{}
	for i := range objects {
		if g, ok := l.Restarts.read(&objects[i]); ok {
			key := watch.Key{Namespace: objects[i].Namespace, Name: objects[i].Name}
			all[key], l.known[key] = &g, true
		}
	}
	for _, id := range lateOf(all) {
		l.late[id] = true
	}
	l.began, l.released = time.Now(), releasedOf(all)
	l.state = restartbudget.Restore(l.began, grantsOf(all))
	return nil
}

// await retries until read succeeds, and returns false if ctx ends first.
func (l *leader) await(ctx context.Context, read func(context.Context) error) bool {
	poll, complain := time.NewTicker(decideEvery), time.NewTicker(complainEvery)
	defer poll.Stop()
	defer complain.Stop()
	for {
		err := read(ctx)
		if err == nil {
			return true
		}
		select {
		case <-ctx.Done():
			return false
		case <-poll.C:
		case <-complain.C:
			l.o.Logger.WarnContext(ctx,
				"failed to read RestartGrants and RestartBudgets, no restarts are granted until it succeeds", "err", err)
		}
	}
}

func (l *leader) run(ctx context.Context) {
	anyway := time.NewTicker(decideAnyway)
	defer anyway.Stop()
	for {
		l.o.Loop.Begin()
		l.decide(ctx, time.Now())
		l.o.Loop.End()
		select {
		case <-ctx.Done():
			return
		case <-l.wake:
		case <-anyway.C:
		}
		_ = run.Sleep(ctx, decideEvery) // the loop checks ctx
	}
}

// decide makes one round of decisions, and queues its writes.
func (l *leader) decide(ctx context.Context, now time.Time) {
	liveness := l.liveness()
	l.takeResults(ctx, now)
	l.takeReleases(ctx)
	l.refund(now, liveness)
	l.markSpent(now)
	l.adopt()
	l.unheld.look(ctx, now, liveness)
	in, pods := l.cluster.input(liveness)
	in.Settings, in.Unread, in.Frozen = *l.settings.Load(), l.unread(), l.o.Frozen()
	in.Requests = slices.DeleteFunc(in.Requests, func(r restartbudget.Request) bool {
		return now.Sub(l.refused[r.ContainerKey]) < pauseAfterRefusal
	})
	result := l.state.Decide(now, in)
	for _, g := range result.Changed {
		l.judged[g.ID] = g
	}
	for i := range result.Decisions {
		if d := &result.Decisions[i]; d.Reason == restartbudget.ReasonGranted {
			l.create(*d.Grant, pods[d.Grant.ID.PodUID])
		}
	}
	l.withdraw(now, result.Decisions)
	l.status.progress.Store(progressOf(l.state, result))
	l.round.Store(&Round{At: now, Epoch: l.epoch, Settings: in.Settings, Hold: l.Hold(), Result: result,
		Unheld: l.unheld.all()})
	l.settle(now, in)
	l.tellConditions(now, result.Decisions, liveness)
	l.sweep(now, in)
	l.report.decided(ctx, in, pods, result, l.state)
	for _, w := range l.wrong.fresh(l.cluster) {
		l.o.Record(w.event())
	}
	l.forget(now)
}

// forget drops records of grants that no longer exist.
func (l *leader) forget(now time.Time) {
	for key, at := range l.refused {
		if now.Sub(at) >= pauseAfterRefusal {
			delete(l.refused, key)
		}
	}
	for id := range l.late {
		if last, is := l.state.Last(id.ContainerKey); !is || last.ID != id {
			delete(l.late, id)
		}
	}
	for key, status := range l.sent {
		if g := l.grants.Get(key); g == nil || g.version != status.version {
			delete(l.sent, key)
			delete(l.taken, key)
		}
	}
}
