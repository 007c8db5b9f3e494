package secrettest

import (
	"context"
	"sync"

	"github.com/sonde-mesh/sonde/internal/run"
)

// watcher holds the pending notifications of one Watch.
type watcher struct {
	mu      sync.Mutex
	changed map[string]bool
	wake    run.Signal
}

func (w *watcher) tell(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[name] = true
	w.wake.Set()
}

// take returns and clears the pending notifications.
func (w *watcher) take() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := w.changed
	w.changed = map[string]bool{}
	return names
}

// Watch implements secret.Shared.
func (m *Memory) Watch(ctx context.Context, changed func(name string)) error {
	return m.watch(ctx, false, func(context.Context) bool { return true }, changed)
}

// WatchLate is Watch for a process with delayed notifications: late waits for them, and returns false if ctx ends
// first. It begins with the existing secrets.
func (m *Memory) WatchLate(ctx context.Context, late func(context.Context) bool, changed func(name string)) error {
	return m.watch(ctx, true, late, changed)
}

func (m *Memory) watch(
	ctx context.Context, all bool, late func(context.Context) bool, changed func(name string),
) error {
	w := &watcher{changed: map[string]bool{}, wake: run.NewSignal()}
	m.mu.Lock()
	if m.watchers == nil {
		m.watchers = map[*watcher]bool{}
	}
	m.watchers[w] = true
	if all {
		for name := range m.files {
			w.tell(name)
		}
	}
	m.mu.Unlock()
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		if !late(ctx) {
			return nil
		}
		for name := range w.take() {
			changed(name)
		}
	}
}
