package secret

import (
	"context"
	"maps"
	"sync"
	"time"
)

// retryEvery is how often a secret is read again that could not be used. An API server that is away tells of no further change.
const retryEvery = 10 * time.Second

// Follow calls take for each secret that another process may have changed, one at a time, and again while take fails. It calls
// failed after each change, and for a retry if the error is another one. It returns nil when ctx ends.
func Follow(ctx context.Context, s Shared, take func(name string) error, failed func(name string, err error)) error {
	f := follower{take: take, failed: failed, errors: map[string]string{}}
	var retrying sync.WaitGroup
	defer retrying.Wait()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	retrying.Go(func() { f.retry(ctx) })
	return s.Watch(ctx, func(name string) { f.try(ctx, name, "") })
}

// follower has the errors of secrets that could not be used.
type follower struct {
	take   func(name string) error
	failed func(name string, err error)

	mu     sync.Mutex // held while take is called
	errors map[string]string
}

// try takes a secret. The error known is not told.
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
