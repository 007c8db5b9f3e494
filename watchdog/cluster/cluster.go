// Package cluster watches one cluster: it probes it again and again, judges whether its nodes are seen, and has its dependants scaled.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/partition"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/leases"
	"github.com/sonde-mesh/sonde/watchdog/probe"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// Source is what one probe asks. *probe.Probe implements it.
type Source interface {
	// APIServer returns nil if the API server answers.
	APIServer(ctx context.Context) error
	// Nodes returns the zones of the nodes that are not being deleted, by name. Going are those that an autoscaler is about to delete.
	Nodes(ctx context.Context) (map[string]string, error)
	Going(ctx context.Context) ([]string, error)
	// Leases returns those of nodes, and when they began to be read.
	Leases(ctx context.Context) (time.Time, []leases.Lease, error)
	Close()
}

var _ Source = (*probe.Probe)(nil)

// Event is one that an operator is told.
type Event struct {
	// Reason is a word of a small set, and Action another one.
	Reason, Action, Note string
	// FieldPath is the part of the object that it is about, such as spec.dependants{Deployment/kcm}, or "": events of one part with the same reason are one.
	FieldPath string
	// Normal events are no warnings.
	Normal bool
}

// Options of a Cluster. All are required but DryRun.
type Options struct {
	// Open begins a probe. Its error is a *probe.Error if the verdict is to say more than that the API server is away.
	Open func(ctx context.Context) (Source, error)
	// Statuses keeps the status, which the next leader reads, and Epoch is that of this leader.
	Statuses Statuses
	Epoch    int64
	// Objects are the dependants.
	Objects scale.Objects
	// Probed is told of each probe, Acted of each action, Event of what an operator is told. They return at once.
	Probed func(took time.Duration)
	Acted  func(scale.Action)
	Event  func(Event)
	// DryRun has nothing be scaled.
	DryRun bool
	Logger *slog.Logger
}

// Cluster is one that is watched.
type Cluster struct {
	o        Options
	config   atomic.Pointer[config.Cluster]
	wake     run.Signal // the configuration has changed
	ledger   *ledger
	tracker  leases.Tracker
	state    partition.State
	worker   worker
	snapshot atomic.Pointer[Snapshot]
	due      atomic.Pointer[time.Time] // when the probe that goes on, or the next one, has to have ended
}

// Snapshot is what is known after a probe.
type Snapshot struct {
	State partition.State
	// Leases by what was made of them.
	Leases map[LeaseState]int
}

// LeaseState is what was made of a lease.
type LeaseState string

// The states. A lease is left out that has no node, or one that is about to be deleted.
const (
	Renewed  LeaseState = "renewed"
	Expired  LeaseState = "expired"
	Unjudged LeaseState = "unjudged"
	LeftOut  LeaseState = "left-out"
)

// New returns a Cluster. Run watches it.
func New(o Options, c *config.Cluster, accepted metav1.Condition) *Cluster {
	w := &Cluster{o: o, wake: run.NewSignal(), ledger: &ledger{store: o.Statuses, epoch: o.Epoch}}
	w.config.Store(c)
	w.ledger.accepted.Store(&accepted)
	w.worker.scaler = &scale.Scaler{Objects: o.Objects, Journal: w.ledger, Report: w.acted, DryRun: o.DryRun}
	return w
}

// Configure replaces the configuration, unless it is nil: one that is not valid changes nothing. What is known of the nodes stays. accepted is the
// condition that says so.
func (c *Cluster) Configure(to *config.Cluster, accepted metav1.Condition) {
	if to != nil {
		c.config.Store(to)
	}
	c.ledger.accepted.Store(&accepted)
	c.wake.Set()
}

// Snapshot returns what is known, nil before the first probe. It must not be changed.
func (c *Cluster) Snapshot() *Snapshot { return c.snapshot.Load() }

// overdue is how late a probe may be: its requests have timeouts, and so has what it waits for.
const overdue = 2 * time.Minute

// Check returns an error if probes have stopped.
func (c *Cluster) Check(now time.Time) error {
	if due := c.due.Load(); due != nil && now.After(due.Add(overdue)) {
		return fmt.Errorf("its probe should have ended at %s", due.Format(time.RFC3339))
	}
	return nil
}

// claimEvery is how often the status is claimed, if the API server refuses.
const claimEvery = 2 * time.Second

// Run watches the cluster until ctx ends, or another leader has taken over. What it has begun to scale has ended then.
func (c *Cluster) Run(ctx context.Context) {
	defer c.due.Store(nil)
	defer c.worker.stop()
	for {
		err := c.ledger.claim(ctx)
		if err == nil {
			break
		}
		if c.over(ctx, err) || wait(ctx, nil, claimEvery) != nil {
			return
		}
		c.o.Logger.WarnContext(ctx, "status not read, trying again", "err", err)
	}
	c.state = c.ledger.restore()
	if len(c.state) == 0 && !c.ledger.hasSteps() { // where a leader has stopped, this one goes on at once
		if wait(ctx, nil, c.config.Load().Probe.InitialDelay) != nil {
			return
		}
	}
	for {
		after, err := c.round(ctx)
		if c.over(ctx, err) || wait(ctx, c.wake, after) != nil {
			return
		}
	}
}

// over reports whether nothing more is to be done.
func (c *Cluster) over(ctx context.Context, err error) bool {
	if errors.Is(err, errFenced) {
		c.o.Logger.ErrorContext(ctx, "not watched any more: another leader has taken over", "err", err)
		return true
	}
	return ctx.Err() != nil
}

// wait returns after a time, or once wake receives, and an error if ctx ends.
func wait(ctx context.Context, wake <-chan struct{}, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-wake:
	case <-ctx.Done():
	}
	return ctx.Err()
}

// maxRetryAfter limits what an API server may ask for: it must not have itself forgotten.
const maxRetryAfter = 2 * time.Minute

// round probes, judges and acts once, and returns when to do so again.
func (c *Cluster) round(ctx context.Context) (after time.Duration, err error) {
	conf := c.config.Load()
	after = time.Duration(float64(conf.Probe.Interval) * (1 + conf.Probe.Jitter*rand.Float64())) //nolint:gosec // it spreads probes, and keeps no secret
	c.expect(conf.Probe.Timeout)
	began := time.Now()
	reading, counts, failed := c.read(ctx, conf)
	c.o.Probed(time.Since(began))
	if ctx.Err() != nil {
		return 0, nil //nolint:nilerr // the end of ctx is how it is meant to end
	}
	if failed != nil {
		after = max(after, c.failed(ctx, conf, failed, &reading))
	}
	before := c.state
	c.state = partition.Judge(before, reading, conf.Judge)
	if failed != nil {
		counts = nil // nothing is known of the leases
	}
	c.snapshot.Store(&Snapshot{State: c.state, Leases: counts})
	c.tell(ctx, before[partition.Whole], c.state[partition.Whole])
	err = c.ledger.judged(ctx, c.state, failed)
	if err != nil && !errors.Is(err, errFenced) {
		c.o.Logger.WarnContext(ctx, "status not written, trying again", "err", err)
		err = nil
	}
	if err == nil {
		c.act(ctx, conf)
	}
	c.expect(after + conf.Probe.Timeout)
	return after, err
}

func (c *Cluster) expect(within time.Duration) {
	due := time.Now().Add(within)
	c.due.Store(&due)
}

// failed makes a reading of a probe that has failed, and returns for how long the API server is to be left alone at least.
func (c *Cluster) failed(ctx context.Context, conf *config.Cluster, failed error, r *partition.Reading) time.Duration {
	c.tracker.Missed()
	*r = partition.Reading{At: time.Now(), Failed: partition.APIServerAway}
	after := time.Duration(0)
	if e, is := errors.AsType[*probe.Error](failed); is {
		r.Failed = e.Cause
		after = min(e.RetryAfter, maxRetryAfter)
	}
	if r.Failed == partition.Throttled && after == 0 {
		after = conf.Probe.Throttled
	}
	c.o.Logger.WarnContext(ctx, "probe failed, nothing is scaled", "cause", string(r.Failed), "err", failed)
	return after
}

// act has the dependants be scaled as the verdict says. While it is unknown, or the cluster paused, nothing is scaled.
func (c *Cluster) act(ctx context.Context, conf *config.Cluster) {
	var to scale.Direction
	switch {
	case conf.Paused:
	case c.state[partition.Whole].Verdict == partition.Lost:
		to = scale.Down
	case c.state[partition.Whole].Verdict == partition.Seen:
		to = scale.Up
	}
	dependants := conf.Dependants
	if to == scale.Up {
		dependants = append(slices.Clone(dependants), c.ledger.orphans(dependants)...)
	}
	c.worker.turn(ctx, to, dependants, c.ledger.hasSteps())
}
