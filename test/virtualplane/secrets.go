package virtualplane

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
)

// Secrets has the Secrets that all replicas share. It answers without a delay, because replicas hold locks meanwhile,
// which would stop the virtual time. Events of changes are delayed.
type Secrets struct{ secrettest.Memory }

// NewSecrets returns a storage without secrets. wrote is called with each version of a secret, in order.
func NewSecrets(wrote func(name string, data []byte)) *Secrets {
	return &Secrets{secrettest.Memory{Wrote: wrote}}
}

// Client is one replica's connection to Secrets: it can be disconnected, and receives changes after a
// delay.
type Client struct {
	all *Secrets
	lag func() time.Duration

	mu  sync.Mutex
	cut bool
}

// Client returns a client that receives changes after a delay.
func (e *Secrets) Client(lag func() time.Duration) *Client {
	return &Client{all: e, lag: lag}
}

// SetCut disconnects the client, or reconnects it.
func (a *Client) SetCut(cut bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.cut = cut
}

var errCut = errors.New("the API server does not answer")

// Reach returns an error while the client is disconnected.
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

// Late waits for the delay of a change, and while the client is disconnected. It returns false if ctx ends first.
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

// Watch implements secret.Shared. It starts with the current secrets.
func (a *Client) Watch(ctx context.Context, changed func(name string)) error {
	return a.all.WatchLate(ctx, a.Late, changed)
}
