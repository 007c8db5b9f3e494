package virtual

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/identity/secret"
)

// Secrets has the Secrets that all replicas share. It answers in no time, since replicas hold locks meanwhile, which time does not wait for; what it
// tells of changes comes late.
type Secrets struct {
	mu      sync.Mutex
	secrets map[string]version
	written int
	// wrote is called with each version of a secret, in their order.
	wrote    func(name string, data []byte)
	watchers map[*watcher]bool
}

type version struct {
	number int
	data   []byte
}

func (v version) String() string { return strconv.Itoa(v.number) }

// NewSecrets returns a storage without secrets. wrote is called with each version of one, in their order.
func NewSecrets(wrote func(name string, data []byte)) *Secrets {
	return &Secrets{secrets: map[string]version{}, wrote: wrote, watchers: map[*watcher]bool{}}
}

func (e *Secrets) put(name string, data []byte) string {
	e.written++
	e.secrets[name] = version{e.written, slices.Clone(data)}
	e.wrote(name, data)
	for w := range e.watchers {
		w.tell(name)
	}
	return e.secrets[name].String()
}

// Client is Secrets as one replica reaches it: it may be cut off, and is told of changes after a while.
type Client struct {
	all *Secrets
	lag func() time.Duration

	mu  sync.Mutex
	cut bool
}

// watcher has what one Watch has not told yet.
type watcher struct {
	mu      sync.Mutex
	changed map[string]bool
	wake    chan struct{}
}

// Client returns a client that is told of changes that late.
func (e *Secrets) Client(lag func() time.Duration) *Client {
	return &Client{all: e, lag: lag}
}

// SetCut cuts the client off, or heals that.
func (a *Client) SetCut(cut bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut = cut
}

var errCut = errors.New("the API server does not answer")

// Reach returns an error while the client is cut off.
func (a *Client) Reach() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.cut {
		return errCut
	}
	return nil
}

func (w *watcher) tell(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.changed[name] = true
	select {
	case w.wake <- struct{}{}:
	default: // it has not told those before
	}
}

// take returns what is to be told.
func (w *watcher) take() map[string]bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	names := w.changed
	w.changed = map[string]bool{}
	return names
}

// Read implements secret.Store.
func (a *Client) Read(_ context.Context, name string) ([]byte, string, error) {
	if err := a.Reach(); err != nil {
		return nil, "", err
	}
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	v, there := a.all.secrets[name]
	if !there {
		return nil, "", fmt.Errorf("read %s: %w", name, fs.ErrNotExist)
	}
	return slices.Clone(v.data), v.String(), nil
}

// Create implements secret.Store.
func (a *Client) Create(_ context.Context, name string, data []byte) (string, error) {
	if err := a.Reach(); err != nil {
		return "", err
	}
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	if _, there := a.all.secrets[name]; there {
		return "", fmt.Errorf("create %s: %w", name, fs.ErrExist)
	}
	return a.all.put(name, data), nil
}

// Update implements secret.Shared.
func (a *Client) Update(_ context.Context, name string, data []byte, read string) (string, error) {
	if err := a.Reach(); err != nil {
		return "", err
	}
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	v, there := a.all.secrets[name]
	switch {
	case !there:
		return "", fmt.Errorf("update %s: %w", name, fs.ErrNotExist)
	case v.String() != read:
		return "", fmt.Errorf("update %s: %w", name, secret.ErrConflict)
	}
	return a.all.put(name, data), nil
}

// List implements identity.Secrets.
func (a *Client) List(_ context.Context, directory string) ([]string, error) {
	if err := a.Reach(); err != nil {
		return nil, err
	}
	a.all.mu.Lock()
	defer a.all.mu.Unlock()
	var names []string
	for name := range a.all.secrets {
		if below, in := strings.CutPrefix(name, directory+"/"); in {
			first, _, _ := strings.Cut(below, "/")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Late waits until the client hears of what has happened, which it does not while it is cut off. It returns false if ctx ends before.
func (a *Client) Late(ctx context.Context) bool {
	for late := a.lag(); late > 0 || a.Reach() != nil; late = 0 {
		select {
		case <-ctx.Done():
			return false
		case <-time.After(max(late, 100*time.Millisecond)):
		}
	}
	return true
}

// Watch implements secret.Shared. It begins with what there is.
func (a *Client) Watch(ctx context.Context, changed func(name string)) error {
	w := &watcher{changed: map[string]bool{}, wake: make(chan struct{}, 1)}
	a.all.mu.Lock()
	a.all.watchers[w] = true
	for name := range a.all.secrets {
		w.tell(name)
	}
	a.all.mu.Unlock()
	defer func() {
		a.all.mu.Lock()
		defer a.all.mu.Unlock()
		delete(a.all.watchers, w)
	}()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-w.wake:
		}
		if !a.Late(ctx) {
			return nil
		}
		for name := range w.take() {
			changed(name)
		}
	}
}
