package secret

import (
	"context"
	"maps"
	"sync"
	"time"
)

// retryEvery is the interval of retries for a secret that cannot be used: an unreachable API server reports no further
// change.
const retryEvery = 10 * time.Second

// Follow calls take for each secret that another process may have changed, one at a time, and retries while take fails.
// It calls failed after each change, and after a retry with a different error. It returns nil when ctx ends.
func Follow(ctx context.Context, s Shared, take func(name string) error, failed func(name string, err error)) error {
	f := follower{take: take, failed: failed, errors: map[string]string{}}
	var retrying sync.WaitGroup
	defer retrying.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	retrying.Go(func() { f.retry(ctx) })
	return s.Watch(ctx, func(name string) { f.try(ctx, name, "") })
}

// follower keeps the errors of unusable secrets.
type follower struct {
	take   func(name string) error
	failed func(name string, err error)

	mu     sync.Mutex // held during calls of take
	errors map[string]string
}

// try calls take for a secret. It does not report an error that equals known.
func (f *follower) try(ctx context.Context, name, known string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	err := f.take(name)
	if err == nil || ctx.Err() != nil {
		delete(f.errors, name)
		return
	}
	if f.errors[name] = err.Error(); err.Error() != known {
		f.failed(name, err)
	}
}

func (f *follower) retry(ctx context.Context) {
	tick := time.NewTicker(retryEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		for name, err := range f.failing() {
			f.try(ctx, name, err)
		}
	}
}

func (f *follower) failing() map[string]string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return maps.Clone(f.errors)
}
