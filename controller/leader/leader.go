// Package leader elects one replica of the control plane by a Lease: the one that writes to the API server. Every replica serves.
package leader

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
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
	Client kubernetes.Interface
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
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex // guards failed
	var failed error
	for ctx.Err() == nil {
		var tasks sync.WaitGroup
		elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
			Name: LeaseName,
			Lock: &resourcelock.LeaseLock{
				LeaseMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: LeaseName}, Client: o.Client.CoordinationV1(),
				LockConfig: resourcelock.ResourceLockConfig{Identity: o.Identity},
			},
			LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
			ReleaseOnCancel: true,
			Callbacks: leaderelection.LeaderCallbacks{
				OnStartedLeading: func(ctx context.Context) {
					tasks.Add(1)
					defer tasks.Done()
					o.Logger.InfoContext(ctx, "leading", "identity", o.Identity)
					if err := lead(ctx, o.Tasks); err != nil && ctx.Err() == nil {
						mu.Lock()
						failed = errors.Join(failed, err)
						mu.Unlock()
						cancel()
					}
				},
				OnStoppedLeading: func() { o.Logger.Info("not leading", "identity", o.Identity) },
			},
		})
		if err != nil {
			return fmt.Errorf("take part in the election: %w", err)
		}
		elector.Run(ctx)
		tasks.Wait()
	}
	mu.Lock()
	defer mu.Unlock()
	return failed
}

// lead runs the tasks until ctx ends or one fails.
func lead(ctx context.Context, tasks []func(context.Context) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range tasks {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}
