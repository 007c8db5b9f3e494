// Package leader elects one replica of a program by a Lease. Only that replica writes to the API server, but every
// replica of the control plane serves proxies.
package leader

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"

	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// restPeriod is how long a replica that cannot take an epoch, or is not fit to lead, leaves the election to others.
	restPeriod = 10 * time.Second
	fitPeriod  = time.Second
)

// Times of the election, each shorter than the previous one. The defaults equal the ones of Kubernetes' own components.
type Times struct {
	// Lease is how long another replica waits for a leader that exited without releasing the Lease. Default 15s.
	Lease time.Duration
	// Renew is how long a leader tries to renew the Lease before it stops leading. Default 10s.
	Renew time.Duration
	// Retry is the time between two attempts. Default 2s.
	Retry time.Duration
}

func (t Times) withDefaults() Times {
	return Times{Lease: cmp.Or(t.Lease, 15*time.Second), Renew: cmp.Or(t.Renew, 10*time.Second),
		Retry: cmp.Or(t.Retry, 2*time.Second)}
}

// LeaseName is the name of the control plane's Lease.
const LeaseName = "sonde-cp"

// Task is work of the leader. epoch is greater than the epochs of all earlier leaders. It protects writes that must not
// happen twice, since a leader may lose its Lease without noticing.
type Task func(ctx context.Context, epoch int64) error

// Options of Run.
type Options struct {
	// Client of the API server. Required.
	Client coordinationv1.LeasesGetter
	// Namespace of the Lease. Required.
	Namespace string
	// Lease is the name of the Lease, which also has the epoch. Default LeaseName.
	Lease string
	// Identity of this replica, such as its pod's name. Required.
	Identity string
	// OldEpoch reads the secret OldSecret, default SecretName, in which an earlier release kept the epoch. The greater
	// of the two epochs is used. Default: no secret is read.
	OldEpoch  OldEpoch
	OldSecret string
	// Tasks run while this replica is the leader. Each returns nil when its context ends.
	Tasks []Task
	// Fit returns why this replica should not lead, nil if it may. It is called each second. Default: it may.
	Fit func() error
	// Times of the election.
	Times Times
	// Logger. Required.
	Logger *slog.Logger
}

// Run takes part in the election until ctx ends, and then releases the Lease. A replica that loses the Lease stops its
// tasks and takes part again. A replica that cannot take an epoch, or is not fit, runs no task, releases the Lease and
// takes part again later. Run returns the error of a task.
func Run(ctx context.Context, o Options) error {
	o.Lease, o.OldSecret, o.Times = cmp.Or(o.Lease, LeaseName), cmp.Or(o.OldSecret, SecretName), o.Times.withDefaults()
	if o.Fit == nil {
		o.Fit = func() error { return nil }
	}
	var last int64
	for ctx.Err() == nil {
		t := &term{o: o, epochs: &epochs{LeaseInterface: o.Client.Leases(o.Namespace), o: o, last: last}}
		if err := t.run(ctx); err != nil {
			return err
		}
		last = t.epochs.taken()
		for again := t.refused; again && ctx.Err() == nil; again = o.Fit() != nil {
			_ = run.Sleep(ctx, restPeriod) // the loop checks ctx
		}
	}
	return nil
}

// term is one participation in the election, with the leadership if it wins.
type term struct {
	o      Options
	epochs *epochs

	mu      sync.Mutex // guards the rest
	over    bool       // tasks must no longer start
	tasks   sync.WaitGroup
	failed  error
	refused bool // it cannot take an epoch, or is not fit
}

// run returns after the replica has led, or ctx has ended. It releases the Lease only after the tasks have ended, so
// that two leaders never overlap.
func (t *term) run(ctx context.Context) error {
	ctx, give := context.WithCancel(ctx)
	t.epochs.refuse = func(err error) { t.refuse(ctx, give, err) }
	var watching sync.WaitGroup
	watching.Go(func() { t.watchFit(ctx, give) })
	defer watching.Wait()
	defer give()
	election, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	stop := context.AfterFunc(ctx, func() {
		t.end()
		resign()
	})
	defer stop()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: t.o.Lease,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: t.o.Namespace, Name: t.o.Lease}, Client: t.epochs,
			LockConfig: resourcelock.ResourceLockConfig{Identity: t.o.Identity},
		},
		LeaseDuration: t.o.Times.Lease, RenewDeadline: t.o.Times.Renew, RetryPeriod: t.o.Times.Retry,
		ReleaseOnCancel: true,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(leading context.Context) {
				defer resign() // if a task has failed
				leading, cancel := context.WithCancel(leading)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				t.lead(leading)
			},
			OnStoppedLeading: func() {},
		},
	})
	if err != nil {
		return fmt.Errorf("take part in the election: %w", err)
	}
	elector.Run(election)
	t.end()
	return t.failed
}

// watchFit ends the term when the replica is no longer fit, until ctx ends.
func (t *term) watchFit(ctx context.Context, give func()) {
	last := time.Now()
	for range run.Every(ctx, fitPeriod) {
		err := t.o.Fit()
		// If the process was suspended, the elector tries to renew for Times.Renew before it notices another leader.
		// Without this check, tasks would run meanwhile.
		if stopped := time.Since(last); err == nil && stopped > t.o.Times.Renew {
			err = fmt.Errorf("the process has not run for %s", stopped.Round(time.Second))
		}
		last = time.Now()
		if err != nil {
			t.o.Logger.WarnContext(ctx, "not fit to lead, leaving the Lease to another replica",
				"replica", t.o.Identity, "err", err,
				"retryAfter", restPeriod)
			t.mu.Lock()
			t.refused = true
			t.mu.Unlock()
			give()
			return
		}
	}
}

// lead runs the tasks until ctx ends or one fails, unless the term is over: the elector does not wait for its callback.
func (t *term) lead(ctx context.Context) {
	t.mu.Lock()
	if t.over {
		t.mu.Unlock()
		return
	}
	t.tasks.Add(1)
	t.mu.Unlock()
	defer t.tasks.Done()
	epoch := t.epochs.taken()
	log := t.o.Logger.With("replica", t.o.Identity, "epoch", epoch)
	log.InfoContext(ctx, "leading")
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range t.o.Tasks {
		group.Go(func() error { return task(ctx, epoch) })
	}
	err := group.Wait()
	log.InfoContext(ctx, "not leading")
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
}

// refuse ends a term that has no valid epoch, unless the term is ending anyway.
func (t *term) refuse(ctx context.Context, end func(), err error) {
	if ctx.Err() != nil {
		return
	}
	t.o.Logger.ErrorContext(ctx, "not leading: no valid epoch, leaving the Lease to another replica",
		"replica", t.o.Identity, "err", err, "retryAfter", restPeriod)
	t.mu.Lock()
	t.refused = true
	t.mu.Unlock()
	end()
}

// end waits for the tasks, whose context must have ended, and prevents further tasks.
func (t *term) end() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.tasks.Wait()
}
