// Package leader elects one replica of the control plane by a Lease: the one that writes to the API server. Every replica serves.
package leader

import (
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
)

// The times of the election, as Kubernetes' own components have them: another replica acts at most leaseDuration after the leader
// has gone without releasing the Lease.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second
)

// LeaseName is the name of the Lease.
const LeaseName = "sonde-cp"

// Options of Run.
type Options struct {
	// Client of the API server. Required.
	Client coordinationv1.LeasesGetter
	// Namespace of the Lease. Required.
	Namespace string
	// Identity of this replica, such as its pod's name. Required.
	Identity string
	// Tasks run while this replica is the leader. Each returns nil when its context ends.
	Tasks []func(context.Context) error
	// Logger. Required.
	Logger *slog.Logger
}

// Run takes part in the election until ctx ends, and then releases the Lease. A replica that is no leader any more stops its tasks
// and takes part again. The error is that of a task.
func Run(ctx context.Context, o Options) error {
	for ctx.Err() == nil {
		t := &term{o: o}
		if err := t.run(ctx); err != nil {
			return err
		}
	}
	return nil
}

// term is one time that a replica waits to be the leader, and perhaps is.
type term struct {
	o Options

	mu     sync.Mutex // guards the rest
	over   bool       // tasks must not start any more
	tasks  sync.WaitGroup
	failed error
}

// run returns once the replica has led, or ctx has ended. The Lease is released after the tasks have ended, so that the next leader is
// alone.
func (t *term) run(ctx context.Context) error {
	election, resign := context.WithCancel(context.WithoutCancel(ctx))
	defer resign()
	stop := context.AfterFunc(ctx, func() {
		t.end()
		resign()
	})
	defer stop()
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Name: LeaseName,
		Lock: &resourcelock.LeaseLock{
			LeaseMeta: metav1.ObjectMeta{Namespace: t.o.Namespace, Name: LeaseName}, Client: t.o.Client,
			LockConfig: resourcelock.ResourceLockConfig{Identity: t.o.Identity},
		},
		LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
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
	t.o.Logger.InfoContext(ctx, "leading", "replica", t.o.Identity)
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range t.o.Tasks {
		group.Go(func() error { return task(ctx) })
	}
	err := group.Wait()
	t.o.Logger.InfoContext(ctx, "not leading", "replica", t.o.Identity)
	t.mu.Lock()
	defer t.mu.Unlock()
	t.failed = err
}

// end waits for the tasks, which have to be ending, and has none start.
func (t *term) end() {
	t.mu.Lock()
	t.over = true
	t.mu.Unlock()
	t.tasks.Wait()
}
