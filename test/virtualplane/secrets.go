package virtualplane

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// Secrets has the Secrets that all replicas share. It answers in no time, since replicas hold locks meanwhile, which time does not wait for; what it
// tells of changes comes late.
type Secrets struct{ secrettest.Memory }

// NewSecrets returns a storage without secrets. wrote is called with each version of one, in their order.
func NewSecrets(wrote func(name string, data []byte)) *Secrets {
	return &Secrets{secrettest.Memory{Wrote: wrote}}
}

// Client is Secrets as one replica reaches it: it may be cut off, and is told of changes after a while.
type Client struct {
	all *Secrets
	lag func() time.Duration

	mu  sync.Mutex
	cut bool
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

// Read implements secret.Store.
func (a *Client) Read(ctx context.Context, name string) ([]byte, string, error) {
	if err := a.Reach(); err != nil {
		return nil, "", err
	}
	return a.all.Read(ctx, name)
}

// Create implements secret.Store.
func (a *Client) Create(ctx context.Context, name string, data []byte) (string, error) {
	if err := a.Reach(); err != nil {
		return "", err
	}
	return a.all.Create(ctx, name, data)
}

// Update implements secret.Shared.
func (a *Client) Update(ctx context.Context, name string, data []byte, version string) (string, error) {
	if err := a.Reach(); err != nil {
		return "", err
	}
	return a.all.Update(ctx, name, data, version)
}

// List implements identity.Secrets.
func (a *Client) List(ctx context.Context, directory string) ([]string, error) {
	if err := a.Reach(); err != nil {
		return nil, err
	}
	return a.all.List(ctx, directory)
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
	return a.all.WatchLate(ctx, a.Late, changed)
}
