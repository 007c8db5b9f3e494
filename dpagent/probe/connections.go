package probe

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

const (
	// maxConnections that are open at once. Each takes about 20 KiB.
	maxConnections = 1024
	// maxClosing more may be about to end.
	maxClosing = 128
	// fairShare of connections that one source may have before others lose theirs: more than a kubelet ever has.
	fairShare = 32
)

// connections makes room for new ones by ending the least useful: those that wait for nothing, those that have
// not yet asked, those that have waited longest; of sources that have many before others.
type connections struct {
	max int

	mu     sync.Mutex
	closed *sync.Cond // one has been closed
	open   int
	source map[netip.Addr]int
	lists  [3]list.List // by what it does, oldest first
}

// What a connection does.
const (
	idle = iota
	asking
	waiting
)

func newConnections(limit int) *connections {
	c := &connections{max: limit, source: map[netip.Addr]int{}}
	c.closed = sync.NewCond(&c.mu)
	return c
}

// conn is one connection of a caller.
type conn struct {
	net.Conn
	owner   *connections
	source  netip.Addr
	evicted chan struct{}

	// guarded by all.mu
	list   *list.List // nil: cannot be evicted
	place  *list.Element
	closed bool
}

// Write limits the time for callers that do not read.
func (c *conn) Write(p []byte) (int, error) {
	if err := c.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// Close may be called more than once.
func (c *conn) Close() error {
	c.owner.mu.Lock()
	if !c.closed {
		c.closed = true
		c.move(nil)
		c.owner.open--
		if c.owner.source[c.source]--; c.owner.source[c.source] == 0 {
			delete(c.owner.source, c.source)
		}
		c.owner.closed.Signal()
	}
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// move puts the connection at the end of a list, or of none. It needs all.mu.
func (c *conn) move(to *list.List) {
	if c.list != nil {
		c.list.Remove(c.place)
	}
	if c.list = to; to != nil {
		c.place = to.PushBack(c)
	}
}

// add takes a new connection in, and may end another for it.
func (a *connections) add(nc net.Conn) *conn {
	c := &conn{Conn: nc, owner: a, evicted: make(chan struct{})}
	if address, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.source = address.AddrPort().Addr()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.open >= a.max+maxClosing {
		a.closed.Wait()
	}
	if a.open >= a.max {
		a.evict()
	}
	a.open++
	a.source[c.source]++
	c.move(&a.lists[asking])
	return c
}

// evict ends one connection. It needs mu.
func (a *connections) evict() {
	for _, least := range []int{fairShare, 0} {
		for what := range a.lists {
			for place := a.lists[what].Front(); place != nil; place = place.Next() {
				c := place.Value.(*conn)
				if a.source[c.source] <= least {
					continue
				}
				c.move(nil)
				close(c.evicted) // a request that waits is told Errored
				if what != waiting {
					_ = c.Conn.Close() // the server sees it, and calls Close
				}
				return
			}
		}
	}
}

// track follows what the server does with a connection.
func (a *connections) track(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.list == nil && state == http.StateIdle: // was to end
		_ = c.Conn.Close() // the server sees it, and calls Close
	case c.list == nil:
	case state == http.StateActive:
		c.move(&a.lists[waiting])
	case state == http.StateIdle:
		c.move(&a.lists[idle])
	}
}

type connKey struct{}

// withConn of a connection's requests.
func (a *connections) withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, nc)
}

// evicted is closed when the connection of ctx must end; nil where nothing is limited.
func evicted(ctx context.Context) <-chan struct{} {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return c.evicted
	}
	return nil
}

// pinConnection keeps the connection of ctx from being evicted.
func pinConnection(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.owner.mu.Lock()
		defer c.owner.mu.Unlock()
		c.move(nil)
	}
}

// listener accepts connections that are limited.
func (a *connections) listener(l net.Listener) net.Listener { return limited{l, a} }

type limited struct {
	net.Listener
	owner *connections
}

// Accept implements net.Listener.
func (l limited) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.owner.add(c), nil
}
