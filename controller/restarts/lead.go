package restarts

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

const (
	// Lead decides after changes, at most once in decideEvery, and each decideAnyway, since time alone ends grants.
	decideEvery  = 200 * time.Millisecond
	decideAnyway = 5 * time.Second
	// complainEvery is how often it is logged that something cannot be read.
	complainEvery = 30 * time.Second
	// keepGrants is how long a grant that is over is kept.
	keepGrants = time.Hour
)

// Lead decides until ctx ends, and then returns nil. It is for the leader, whose epoch its grants have.
func (r *Restarts) Lead(ctx context.Context, epoch int64) error {
	l := &leader{Restarts: r, epoch: epoch, status: newBudgetStatus(r), unwritten: map[watch.Key]restartbudget.Grant{}}
	if !l.await(ctx) {
		return nil
	}
	all := r.allGrants()
	l.state, l.released = restartbudget.Restore(time.Now(), grantsOf(all)), releasedOf(all)
	defer r.round.Store(nil)
	var status errgroup.Group
	status.Go(func() error { return l.status.run(ctx) })
	l.run(ctx)
	return status.Wait()
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
	state  *restartbudget.State
	status *budgetStatus
	wrong  wrongAnnotations
	// released are the grants that state counts as released, unwritten those whose status could not be written.
	released  map[watch.Key]bool
	unwritten map[watch.Key]restartbudget.Grant
}

// await waits until all has been read, and returns false if ctx ends before.
func (l *leader) await(ctx context.Context) bool {
	poll, complain := time.NewTicker(decideEvery), time.NewTicker(complainEvery)
	defer poll.Stop()
	defer complain.Stop()
	for {
		err := l.missing()
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
		pause := time.NewTimer(decideEvery)
		select {
		case <-ctx.Done():
		case <-pause.C:
		}
		pause.Stop()
	}
}

// decide makes one round of decisions, and writes them.
func (l *leader) decide(ctx context.Context, now time.Time) {
	liveness := l.o.Liveness()
	l.takeReleases(ctx)
	l.writeAgain(ctx)
	l.refund(ctx, now, liveness)
	in, pods := l.cluster.input(liveness)
	in.Settings = *l.settings.Load()
	result := l.state.Decide(now, in)
	l.logBreaker(ctx, result.Breaker)
	for _, g := range result.Changed {
		l.writeStatus(ctx, g, pods)
	}
	written := true // an API server that does not answer is asked once in a round
	for _, d := range result.Decisions {
		if d.Reason != restartbudget.ReasonGranted {
			continue
		}
		l.o.Loop.Beat() // each of them may wait for the API server
		if written = written && l.write(ctx, *d.Grant, pods[d.Grant.ID.PodUID]); !written {
			l.state.Refund(now, d.Grant.ID)
		}
	}
	l.status.progress.Store(progressOf(l.state, result))
	l.round.Store(&Round{At: now, Epoch: l.epoch, Settings: in.Settings, Result: result})
	l.sweep(ctx, now)
	for _, w := range l.wrong.fresh(l.cluster) {
		l.o.Record(w.event())
	}
}

// logBreaker logs that nothing is granted any more, or that restarts are granted again.
func (l *leader) logBreaker(ctx context.Context, b restartbudget.Breaker) {
	switch {
	case b.Changed && b.Open:
		l.o.Logger.WarnContext(ctx, "no restart is granted while so much fails at once", "containers", b.Held, "of", b.Guarded, "workloads", b.Workloads)
	case b.Changed:
		l.o.Logger.InfoContext(ctx, "restarts are granted again")
	}
}

// write makes the object of a new grant, and reports whether it is there. An agent is told once a watch has it.
func (l *leader) write(ctx context.Context, g restartbudget.Grant, pod watch.Key) bool {
	o := objectOf(g, pod, l.epoch)
	err := l.o.Writing.Post().Resource(resource).Namespace(o.Namespace).Body(o).Do(ctx).Error()
	log := l.o.Logger.With("namespace", pod.Namespace, "pod", pod.Name, "container", g.ID.Name, "restarts", g.ID.Restarts, "dryRun", g.DryRun)
	switch {
	case err == nil:
		log.InfoContext(ctx, "restart granted", "grant", o.Name)
	case apierrors.IsAlreadyExists(err): // a leader before this one has granted it
		log.InfoContext(ctx, "restart was granted before", "grant", o.Name)
	default:
		log.WarnContext(ctx, "restart not granted, trying again", "err", err)
		return false
	}
	return true
}

// refund ends grants that were not used, as agents say.
func (l *leader) refund(ctx context.Context, now time.Time, liveness map[watch.Key]Liveness) {
	for _, key := range l.grants.Keys() {
		g := l.grants.Get(key)
		if g == nil || g.Outcome != restartbudget.Open || !slices.Contains(liveness[g.pod].Unused, key.Name) {
			continue
		}
		if refunded, is := l.state.Refund(now, g.ID); is {
			l.patchStatus(ctx, key, refunded)
		}
	}
}

func (l *leader) writeStatus(ctx context.Context, g restartbudget.Grant, pods map[string]watch.Key) {
	if pod, there := pods[g.ID.PodUID]; there {
		l.patchStatus(ctx, watch.Key{Namespace: pod.Namespace, Name: nameOf(pod.Name, g.ID)}, g)
	}
}

// patchStatus writes the status of a grant, and returns false if that has to be done again.
func (l *leader) patchStatus(ctx context.Context, key watch.Key, g restartbudget.Grant) bool {
	patch, err := l.statusPatch(key, statusOf(g))
	if err == nil {
		err = l.o.Writing.Patch(types.MergePatchType).Resource(resource).Namespace(key.Namespace).Name(key.Name).SubResource("status").Body(patch).Do(ctx).Error()
	}
	if err == nil || apierrors.IsNotFound(err) {
		delete(l.unwritten, key)
		return true
	}
	l.unwritten[key] = g
	if !apierrors.IsConflict(err) { // with one the watch is behind
		l.o.Logger.WarnContext(ctx, "status of a grant not written, trying again", "namespace", key.Namespace, "grant", key.Name, "outcome", g.Outcome, "err", err)
	}
	return false
}

// sweep deletes grants that have been over for long. Those that did not help are kept while there are pods of their template.
func (l *leader) sweep(ctx context.Context, now time.Time) {
	for _, key := range l.grants.Keys() {
		g := l.grants.Get(key)
		if g == nil || now.Sub(g.Granted) < keepGrants || g.Outcome == restartbudget.Unhelpful && l.state.Unhelpful(g.Workload, g.Template) {
			continue
		}
		err := l.o.Writing.Delete().Resource(resource).Namespace(key.Namespace).Name(key.Name).Body(&metav1.DeleteOptions{}).Do(ctx).Error()
		if err != nil && !apierrors.IsNotFound(err) {
			l.o.Logger.WarnContext(ctx, "old grant not deleted, trying again", "namespace", key.Namespace, "grant", key.Name, "err", err)
			return
		}
	}
}
