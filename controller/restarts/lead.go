package restarts

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// Lead decides after changes, at most once in decideEvery, and each decideAnyway, since time alone ends grants.
	decideEvery  = 200 * time.Millisecond
	decideAnyway = 5 * time.Second
	// complainEvery is how often it is logged that something cannot be read.
	complainEvery = 30 * time.Second
	// readTimeout is for all grants.
	readTimeout = 30 * time.Second
	// keepGrants is how long a grant that is over is kept.
	keepGrants = time.Hour
)

// Lead decides, and writes what it has decided, until ctx ends, and then returns nil. It is for the leader, whose epoch its grants have.
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
	l.run(ctx)
	return nil
}

// Round is what the leader has decided last.
type Round struct {
	At    time.Time
	Epoch int64
	// Settings by which it was decided.
	Settings restartbudget.Settings
	restartbudget.Result
}

// Round returns the last one of this replica, nil if it does not lead or has decided nothing yet. It must not be changed.
func (r *Restarts) Round() *Round { return r.round.Load() }

// leader is a Restarts whose replica leads.
type leader struct {
	*Restarts
	epoch  int64
	began  time.Time
	state  *restartbudget.State
	writer *writer
	report *report
	status *budgetStatus
	wrong  wrongAnnotations

	// released are the grants that state counts as released.
	released map[watch.Key]bool
	creating map[writeID]creation
	refused  map[restartbudget.ContainerKey]time.Time // when the API server has refused a grant
	// known are the grants that there were at the start. Others of an earlier leader are late, as those of lateOf are.
	known map[watch.Key]bool
	late  map[restartbudget.GrantID]bool
	// judged are grants that have gone on, until a watch has that: their containers may have another grant by then.
	judged map[restartbudget.GrantID]restartbudget.Grant
	// sent are the statuses of grants that were sent last, taken those that the API server has taken, until a watch has them.
	sent, taken map[watch.Key]sentStatus
	// instances are the containers of open grants as they were seen first.
	instances map[restartbudget.GrantID]uint64
	// conditions are when those of pods were written last.
	conditions   map[watch.Key]time.Time
	noConditions bool // there is no right to write them
}

// creation is a grant whose object is not there yet.
type creation struct {
	grant restartbudget.Grant
	pod   watch.Key
}

func newLeader(r *Restarts, epoch int64) *leader {
	return &leader{
		Restarts: r, epoch: epoch, writer: newWriter(r.o.Logger, r.o.Writes, r.wakeLead), report: newReport(r), status: newBudgetStatus(r), creating: map[writeID]creation{},
		refused: map[restartbudget.ContainerKey]time.Time{}, known: map[watch.Key]bool{}, late: map[restartbudget.GrantID]bool{}, judged: map[restartbudget.GrantID]restartbudget.Grant{},
		sent: map[watch.Key]sentStatus{}, taken: map[watch.Key]sentStatus{}, conditions: map[watch.Key]time.Time{},
	}
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

// await tries until all has been read, and returns false if ctx ends before.
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
			l.o.Logger.WarnContext(ctx, "no restart is granted until all is read: without their CustomResourceDefinitions there are no RestartGrants and RestartBudgets", "err", err)
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
		_ = run.Sleep(ctx, decideEvery) // the loop looks at ctx
	}
}

// decide makes one round of decisions, and has them written.
func (l *leader) decide(ctx context.Context, now time.Time) {
	liveness := l.liveness()
	l.takeResults(ctx, now)
	l.takeReleases(ctx)
	l.refund(now, liveness)
	l.markSpent(now)
	in, pods := l.cluster.input(liveness)
	in.Settings, in.Unread, in.Frozen = *l.settings.Load(), l.unread(), l.o.Frozen()
	in.Requests = slices.DeleteFunc(in.Requests, func(r restartbudget.Request) bool { return now.Sub(l.refused[r.ContainerKey]) < pauseAfterRefusal })
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
	l.round.Store(&Round{At: now, Epoch: l.epoch, Settings: in.Settings, Result: result})
	l.settle(now, in)
	l.tellConditions(now, result.Decisions, liveness)
	l.sweep(now, in)
	l.report.decided(ctx, in, pods, result, l.state)
	for _, w := range l.wrong.fresh(l.cluster) {
		l.o.Record(w.event())
	}
	l.forget(now)
}

// forget drops what is known of grants that are no more.
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
