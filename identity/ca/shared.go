package ca

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// maxConflicts limits the attempts at a change if other processes write first.
const maxConflicts = 5

// State is a Set with the other contents of its secret. It embeds a Kept, and is immutable.
type State[S any] interface {
	comparable
	// With returns the state with another Set.
	With(set *Set) S
	// Encode encodes the state for Shared.Decode.
	Encode() ([]byte, error)
	kept() *Kept
}

// Kept is the part of a State common to all CAs. A Shared sets all fields except Set.
type Kept struct {
	*Set
	// Since is the time at which this process began to use this epoch and step.
	Since   time.Time
	version string
}

func (k *Kept) kept() *Kept { return k }

// Shared is a State in a secret that several processes share. Each change is one compare-and-swap, and is decided again
// after a conflict. Set the exported fields before Open, and do not change them later.
type Shared[S State[S]] struct {
	Storage secret.Shared
	// Name of the secret.
	Name string
	// Decode reads a state. Its errors must not contain keys.
	Decode func(data []byte) (S, error)
	// Used is called after a change of the state in use. It must not call methods of the Shared that change or hold it.
	Used func(ctx context.Context, before, now S)
	Now  func() time.Time

	// current is the stored state. Handshakes read it without a lock.
	current atomic.Pointer[S]
	// step is locked from the decision about a change until the change is in use. This includes the write to the
	// storage.
	step sync.RWMutex
	// taken means that Open or Change has loaded a change by another process since Follow last returned true. It is
	// guarded by step.
	taken bool
}

// Open reads the state. If none exists, it stores the result of create, unless another process is faster; created says
// whether it did. Without create the error wraps fs.ErrNotExist.
func (s *Shared[S]) Open(ctx context.Context, create func() (S, error)) (created bool, err error) {
	now, err := s.read(ctx)
	if create != nil && errors.Is(err, fs.ErrNotExist) {
		now, err = s.create(ctx, create)
		if created = err == nil; errors.Is(err, fs.ErrExist) {
			now, err = s.read(ctx)
		}
	}
	if err == nil {
		s.put(ctx, now)
		s.taken = !created
	}
	return created, err
}

// create stores the result of create. The error wraps fs.ErrExist if another process was faster.
func (s *Shared[S]) create(ctx context.Context, create func() (S, error)) (S, error) {
	first, err := create()
	if err != nil {
		return first, err
	}
	data, err := first.Encode()
	if err != nil {
		return first, err
	}
	if first.kept().version, err = s.Storage.Create(ctx, s.Name, data); err != nil {
		return first, fmt.Errorf("create %s: %w", s.Name, err)
	}
	return first, nil
}

// Current returns the state in use.
func (s *Shared[S]) Current() S { return *s.current.Load() }

// Hold returns the state in use, and prevents changes until release is called.
func (s *Shared[S]) Hold() (now S, release func()) {
	s.step.RLock()
	return s.Current(), s.step.RUnlock
}

// Register registers the metrics. meshName is empty for the serving CA. It does nothing if the registerer is nil.
func (s *Shared[S]) Register(registerer prometheus.Registerer, meshName string) error {
	return register(registerer, meshName, s.Now, func() *Set { return s.Current().kept().Set })
}

// Follow loads a change by another process, and reports whether there was one. It also returns true once after Open or
// Change has loaded such a change, since only the caller of Follow notifies others.
func (s *Shared[S]) Follow(ctx context.Context) (bool, error) {
	for {
		before := s.Current()
		now, err := s.newer(ctx, before)
		if err != nil {
			return false, err
		}
		if followed, done := s.replace(ctx, before, now); done {
			return followed, nil
		}
	}
}

// replace uses a state that was read without the lock, unless the current state has changed since then, perhaps to a
// newer one.
func (s *Shared[S]) replace(ctx context.Context, before, now S) (followed, done bool) {
	s.step.Lock()
	defer s.step.Unlock()
	if s.Current() != before {
		return false, false
	}
	s.take(ctx, now)
	followed, s.taken = s.taken, false
	return followed, true
}

// Change stores and uses the state that decide returns, and reports whether it did. decide returns nil for no change.
// Change calls it again after a conflict.
func (s *Shared[S]) Change(ctx context.Context, decide func(now S) (S, error)) (bool, error) {
	s.step.Lock()
	defer s.step.Unlock()
	var none S
	for range maxConflicts {
		before := s.Current()
		next, err := decide(before)
		if err != nil || next == none {
			return false, err
		}
		if err = s.update(ctx, next, before.kept().version); err == nil {
			s.put(ctx, next)
			return true, nil
		}
		if errors.Is(err, secret.ErrConflict) {
			next, err = s.newer(ctx, before)
		}
		if err != nil {
			return false, fmt.Errorf("change %s: %w", s.Name, err)
		}
		s.take(ctx, next)
	}
	return false, fmt.Errorf("change %s: %d conflicts with other writers: %w", s.Name, maxConflicts, secret.ErrConflict)
}

func (s *Shared[S]) update(ctx context.Context, next S, version string) error {
	data, err := next.Encode()
	if err == nil {
		next.kept().version, err = s.Storage.Update(ctx, s.Name, data, version)
	}
	return err
}

// take uses a state from the storage if it differs. The caller holds step.
func (s *Shared[S]) take(ctx context.Context, now S) {
	if now.kept().version != s.Current().kept().version {
		s.put(ctx, now)
		s.taken = true
	}
}

// put uses a stored state. The caller holds step; Open need not, since no other goroutine has s yet.
func (s *Shared[S]) put(ctx context.Context, now S) {
	k := now.kept()
	k.Since = s.Now()
	before := s.current.Load()
	if before == nil {
		s.current.Store(&now)
		return
	}
	if was := (*before).kept(); was.Epoch == k.Epoch && was.Step() == k.Step() {
		k.Since = was.Since
	}
	s.current.Store(&now)
	s.Used(ctx, *before, now)
}

func (s *Shared[S]) read(ctx context.Context) (S, error) {
	data, version, err := s.Storage.Read(ctx, s.Name)
	var now S
	if err == nil {
		now, err = s.Decode(data)
	}
	if err != nil {
		return now, fmt.Errorf("read %s: %w", s.Name, err)
	}
	now.kept().version = version
	return now, nil
}

// newer returns the stored state, or an error if it was removed or is older than the one in use: a restored backup
// would remove CAs that clients need.
func (s *Shared[S]) newer(ctx context.Context, before S) (S, error) {
	now, err := s.read(ctx)
	if errors.Is(err, fs.ErrNotExist) {
		return now, fmt.Errorf("it was removed from the storage, but remains in use: %w", err)
	}
	if err != nil {
		return now, err
	}
	if is, used := now.kept().Epoch, before.kept().Epoch; is < used {
		return now, fmt.Errorf("read %s: epoch: %d: must be at least %d, the epoch in use; "+
			"to use a restored CA, restart the control plane and rotate the CA", s.Name, is, used)
	}
	return now, nil
}
