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
	// trusted is how long a connection on which a review was answered makes room only after those on which none was: API servers
	// keep theirs.
	trusted = 30 * time.Second
	// maxAhead is how many bytes a connection may send beside the bodies that are answered. Of these the window of a connection may be
	// on its way, and the rest are frames that ask nothing: these take the processor and nothing else.
	maxAhead = window + 128<<10
	// perReview is what is taken off again for each review, which has a header, and its frames.
	perReview = 4 << 10
	// perWaste is what is added for a request that its peer gives up, which takes the server more than its bytes.
	perWaste = 2 << 10
)

// guarded is a connection that ends if it sends much that asks nothing.
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
	return n, err //nolint:wrapcheck // it is that connection's
}

// arrived takes bytes off that were of use; a negative number adds some.
func (g *guarded) arrived(n int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.ahead = max(g.ahead-n, 0)
}

// guardedListener guards the connections that are accepted.
type guardedListener struct{ net.Listener }

// Accept implements net.Listener.
func (l guardedListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err //nolint:wrapcheck // it is that listener's
	}
	return &guarded{Conn: c}, nil
}

// caller is the connection of a request.
type caller struct {
	guard *guarded

	mu    sync.Mutex
	trust *time.Timer // ends it
}

type callerKey struct{}

// withCaller is a hook for http.Server.
func withCaller(ctx context.Context, nc net.Conn) context.Context {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	g, _ := nc.(*guarded)
	return context.WithValue(ctx, callerKey{}, &caller{guard: g})
}

// callerOf returns the connection of a request, an unknown one without a network.
func callerOf(ctx context.Context) *caller {
	if c, ok := ctx.Value(callerKey{}).(*caller); ok {
		return c
	}
	return &caller{}
}

// received says that bytes of a body have arrived.
func (c *caller) received(n int) {
	if c.guard != nil {
		c.guard.arrived(n)
	}
}

// wasted says that a request did not arrive.
func (c *caller) wasted() {
	if c.guard != nil {
		c.guard.arrived(-perWaste)
	}
}

// asked says that a whole request has arrived. The caller waits for the server until end is called.
func (c *caller) asked() (end func()) {
	if c.guard == nil {
		return func() {}
	}
	c.guard.arrived(perReview)
	return connlimit.Begin(c.guard.Conn)
}

// answered says that a review of this connection was answered.
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
