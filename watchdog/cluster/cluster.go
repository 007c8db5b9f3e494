// Package cluster watches one cluster: it probes the cluster periodically, judges the state of its nodes, and scales
// its dependants.
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

// Source is one probe. *probe.Probe implements it.
type Source interface {
	// APIServer returns nil if the API server answers.
	APIServer(ctx context.Context) error
	// Nodes returns the zones of nodes, except nodes being deleted, by node name. Going returns the names of nodes that an
	// autoscaler is about to delete.
	Nodes(ctx context.Context) (map[string]string, error)
	Going(ctx context.Context) ([]string, error)
	// Leases returns the node leases, and when the read began.
	Leases(ctx context.Context) (time.Time, []leases.Lease, error)
	Close()
}

var _ Source = (*probe.Probe)(nil)

// Event is an event for operators.
type Event struct {
	// Reason and Action are from fixed sets of words.
	Reason, Action, Note string
	// FieldPath is the affected part of the object, such as spec.dependants{Deployment/kcm}, or "". Events with the same
	// part and reason are merged.
	FieldPath string
	// Normal is false for warnings.
	Normal bool
}

// Options of a Cluster. All but DryRun are required.
type Options struct {
	// Open begins a probe. It returns a *probe.Error if the cause of the verdict is something else than an unreachable
	// API server.
	Open func(ctx context.Context) (Source, error)
	// Statuses stores the status for the next leader. Epoch is the epoch of this leader.
	Statuses Statuses
	Epoch    int64
	// Objects reads and scales the dependants.
	Objects scale.Objects
	// Probed is called for each probe, Acted for each action, Event for each event. They must return at once.
	Probed func(took time.Duration)
	Acted  func(scale.Action)
	Event  func(Event)
	// DryRun scales nothing.
	DryRun bool
	Logger *slog.Logger
}

// Cluster is a watched cluster.
type Cluster struct {
	o        Options
	config   atomic.Pointer[config.Cluster]
	wake     run.Signal // signals a changed configuration
	ledger   *ledger
	tracker  leases.Tracker
	state    partition.State
	worker   worker
	snapshot atomic.Pointer[Snapshot]
	due      atomic.Pointer[time.Time] // deadline of the current probe, or of the next one
}

// Snapshot is the state after a probe.
type Snapshot struct {
	State partition.State
	// Leases counts leases by state.
	Leases map[LeaseState]int
}

// LeaseState is the state of a lease.
type LeaseState string

// States of a lease. It is left out if it has no node, or if its node is about to be deleted.
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

// Configure replaces the configuration, and keeps the state of the nodes. A nil configuration, for an invalid object,
// changes nothing. accepted is the Accepted condition of the object.
func (c *Cluster) Configure(to *config.Cluster, accepted metav1.Condition) {
	if to != nil {
		c.config.Store(to)
	}
	c.ledger.accepted.Store(&accepted)
	c.wake.Set()
}

// Snapshot returns the last snapshot, nil before the first probe. It must not be changed.
func (c *Cluster) Snapshot() *Snapshot { return c.snapshot.Load() }

// overdue is how much later than its deadline a probe may end: its requests, and all other waits, have timeouts.
const overdue = 2 * time.Minute

// Check returns an error if probes have stopped.
func (c *Cluster) Check(now time.Time) error {
	if due := c.due.Load(); due != nil && now.After(due.Add(overdue)) {
		return fmt.Errorf("its probe should have ended at %s", due.Format(time.RFC3339))
	}
	return nil
}

// claimEvery is the delay before another attempt to claim the status if the API server refuses.
const claimEvery = 2 * time.Second

// Run watches the cluster until ctx ends or another leader takes over. It waits for scaling that has begun.
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
		c.o.Logger.WarnContext(ctx, "failed to read status, retrying", "err", err)
	}
	c.state = c.ledger.restore()
	if len(c.state) == 0 && !c.ledger.hasSteps() { // continue the previous leader's work immediately
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

// over reports whether this leader must stop.
func (c *Cluster) over(ctx context.Context, err error) bool {
	if errors.Is(err, errFenced) {
		c.o.Logger.ErrorContext(ctx, "another leader has taken over, stopped watching", "err", err)
		return true
	}
	return ctx.Err() != nil
}

// wait returns after a delay or once wake receives, and returns an error if ctx ends.
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

// maxRetryAfter limits the Retry-After of an API server, which must not stop its own probes.
const maxRetryAfter = 2 * time.Minute

// round probes, judges and scales once. It returns the delay before the next round.
func (c *Cluster) round(ctx context.Context) (after time.Duration, err error) {
	conf := c.config.Load()
	after = time.Duration(float64(conf.Probe.Interval) * (1 + conf.Probe.Jitter*rand.Float64())) //nolint:gosec // jitter, not a secret
	c.expect(conf.Probe.Timeout)
	began := time.Now()
	reading, counts, failed := c.read(ctx, conf)
	c.o.Probed(time.Since(began))
	if ctx.Err() != nil {
		return 0, nil //nolint:nilerr // ctx has ended, as intended
	}
	if failed != nil {
		after = max(after, c.failed(ctx, conf, failed, &reading))
	}
	before := c.state
	c.state = partition.Judge(before, reading, conf.Judge)
	if failed != nil {
		counts = nil // the leases were not read
	}
	c.snapshot.Store(&Snapshot{State: c.state, Leases: counts})
	c.tell(ctx, before[partition.Whole], c.state[partition.Whole])
	err = c.ledger.judged(ctx, c.state, failed)
	if err != nil && !errors.Is(err, errFenced) {
		c.o.Logger.WarnContext(ctx, "failed to write status, retrying", "err", err)
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

// failed returns the reading for a failed probe, and the minimum delay before the next request to the API server.
func (c *Cluster) failed(ctx context.Context, conf *config.Cluster, failed error, r *partition.Reading) time.Duration {
	c.tracker.Missed()
	*r = partition.Reading{At: time.Now(), Failed: partition.APIServerAway}
	after := time.Duration(0)
	if e, ok := errors.AsType[*probe.Error](failed); ok {
		r.Failed = e.Cause
		after = min(e.RetryAfter, maxRetryAfter)
	}
	if r.Failed == partition.Throttled && after == 0 {
		after = conf.Probe.Throttled
	}
	c.o.Logger.WarnContext(ctx, "probe failed, nothing is scaled", "cause", string(r.Failed), "err", failed)
	return after
}

// act scales the dependants according to the verdict. While it is unknown, or the cluster is paused, nothing is scaled.
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
