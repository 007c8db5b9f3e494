package webhook

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

const (
	// trusted is how long a connection is protected from eviction after an answered review: API servers keep their
	// connections.
	trusted = 30 * time.Second
	// maxAhead limits the bytes of a connection in excess of answered bodies: one flow-control window in transit, and
	// frames without a request, which only cost CPU.
	maxAhead = window + 128<<10
	// perReview is the allowance for the header and frames of each review.
	perReview = 4 << 10
	// perWaste is the charge for a request that the client cancels, which costs the server more than its bytes.
	perWaste = 2 << 10
)

// guarded is a connection that is closed if it sends too many bytes without requests.
type guarded struct {
	net.Conn

	mu    sync.Mutex
	ahead int
}

// Read implements net.Conn.
func (g *guarded) Read(into []byte) (int, error) {
	n, err := g.Conn.Read(into)
	g.mu.Lock()
	g.ahead += n
	over := g.ahead > maxAhead
	g.mu.Unlock()
	if over {
		_ = g.Close()
	}
	return n, err //nolint:wrapcheck // the connection's own error
}

// arrived subtracts useful bytes; a negative number adds a charge.
func (g *guarded) arrived(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ahead = max(g.ahead-n, 0)
}

// guardedListener guards the accepted connections.
type guardedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l guardedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // the listener's own error
	}
	return &guarded{Conn: c}, nil
}

// caller represents the connection of a request.
type caller struct {
	guard *guarded

	mu    sync.Mutex
	trust *time.Timer // closes the connection
}

type callerKey struct{}

// withCaller is the ConnContext of http.Server.
func withCaller(ctx context.Context, nc net.Conn) context.Context {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	g, _ := nc.(*guarded)
	return context.WithValue(ctx, callerKey{}, &caller{guard: g})
}

// callerOf returns the connection of a request, or an empty caller in tests without a network.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{}
}

// received counts bytes of a body as useful.
func (c *caller) received(n int) {
	if c.guard != nil {
		c.guard.arrived(n)
	}
}

// wasted charges for an incomplete request.
func (c *caller) wasted() {
	if c.guard != nil {
		c.guard.arrived(-perWaste)
	}
}

// asked marks that a complete request has arrived. The caller waits for the server until end is called.
func (c *caller) asked() (end func()) {
	if c.guard == nil {
		return func() {}
	}
	c.guard.arrived(perReview)
	return connlimit.Begin(c.guard.Conn)
}

// answered marks that a review of this connection was answered.
func (c *caller) answered() {
	if c.guard == nil {
		return
	}
	end := connlimit.Begin(c.guard.Conn)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trust != nil && c.trust.Stop() {
		c.trust.Reset(trusted)
		end()
		return
	}
	c.trust = time.AfterFunc(trusted, end)
}
