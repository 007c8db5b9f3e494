package watchdog

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sonde-mesh/sonde/controller/watch"
)

const (
	// atOnce is the number of concurrent reconciliations per loop, each of which may wait for the API server.
	atOnce = 16
	// retryEvery is the delay before a failed write of an object or its status is retried.
	retryEvery = 10 * time.Second
	// startAndEnd is the verbosity of the controller's own log messages, for debugging.
	startAndEnd = 4
)

// loop reconciles the objects of a store while this replica leads.
type loop struct {
	name   string
	keys   func() []watch.Key
	logger *slog.Logger

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // guarded by mu, nil outside a term
}

// changed queues an object.
func (l *loop) changed(key watch.Key) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.queue != nil {
		l.queue.Add(reconcile.Request{NamespacedName: key})
	}
}

func (l *loop) setQueue(to workqueue.TypedRateLimitingInterface[reconcile.Request]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = to
}

// run reconciles all objects until ctx ends: at the start, on each change, and after the delay that do returns, unless
// it is 0. Each term has a new controller, since a controller can only start once. No Manager is used, since its cache,
// client, servers and election would all be unused. A panic ends the process, so that another replica leads.
func (l *loop) run(ctx context.Context, do func(context.Context, watch.Key) time.Duration) error {
	c, err := controller.NewUnmanaged(l.name, controller.Options{
		Reconciler: reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: do(ctx, r.NamespacedName)}, nil
		}),
		MaxConcurrentReconciles: atOnce, SkipNameValidation: new(true), RecoverPanic: new(false),
		Logger: logr.FromSlogHandler(l.logger.Handler()).V(startAndEnd),
	})
	if err != nil {
		return fmt.Errorf("create controller of %s: %w", l.name, err)
	}
	defer l.setQueue(nil)
	if err := errors.Join(c.Watch(source.Func(l.listen)), c.Start(ctx)); err != nil {
		return fmt.Errorf("reconcile %s: %w", l.name, err)
	}
	return nil
}

// listen queues all existing objects, and then each object that changes.
func (l *loop) listen(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	l.setQueue(queue)
	for _, key := range l.keys() {
		l.changed(key)
	}
	return nil
}
