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
	// atOnce is how many objects of a loop are reconciled at the same time: each may wait for the API server.
	atOnce = 16
	// retryEvery is how often it is tried again to write an object or its status.
	retryEvery = 10 * time.Second
	// startAndEnd is the verbosity of what a controller says: it is for debugging.
	startAndEnd = 4
)

// loop reconciles the objects of a store while this replica leads.
type loop struct {
	name   string
	keys   func() []watch.Key
	logger *slog.Logger

	mu    sync.Mutex
	queue workqueue.TypedRateLimitingInterface[reconcile.Request] // guarded by mu, nil outside of a term
}

// changed has an object be reconciled.
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

// run calls do for each object until ctx ends: at first, once it has changed, and after the time that do returns, unless that is 0. Each term has a controller
// of its own, since one starts once. There is no Manager: its cache, client, servers and election would all be off. A panic ends the process, so that
// another replica leads.
func (l *loop) run(ctx context.Context, do func(context.Context, watch.Key) time.Duration) error {
	c, err := controller.NewUnmanaged(l.name, controller.Options{
		Reconciler: reconcile.Func(func(_ context.Context, r reconcile.Request) (reconcile.Result, error) {
			return reconcile.Result{RequeueAfter: do(ctx, r.NamespacedName)}, nil
		}),
		MaxConcurrentReconciles: atOnce, SkipNameValidation: new(true), RecoverPanic: new(false),
		Logger: logr.FromSlogHandler(l.logger.Handler()).V(startAndEnd),
	})
	if err != nil {
		return fmt.Errorf("make the controller of %s: %w", l.name, err)
	}
	defer l.setQueue(nil)
	if err := errors.Join(c.Watch(source.Func(l.listen)), c.Start(ctx)); err != nil {
		return fmt.Errorf("reconcile %s: %w", l.name, err)
	}
	return nil
}

// listen is the source of all objects that there are, and then of those that change.
func (l *loop) listen(_ context.Context, queue workqueue.TypedRateLimitingInterface[reconcile.Request]) error {
	l.setQueue(queue)
	for _, key := range l.keys() {
		l.changed(key)
	}
	return nil
}
