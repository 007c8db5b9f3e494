package probe

import (
	"container/list"
	"context"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/internal/connlimit"
)

// MaxConnections is the maximum number of open connections. Each takes about 20 KiB.
const MaxConnections = 1024

const (
	// closingPart allows more connections than the limit while evicted ones close: limit/closingPart more, at least
	// minClosing.
	closingPart = 8
	minClosing  = 8
	// askPatience is how long a caller may take to send its request before it can be evicted. Otherwise a flood from many
	// addresses would evict connections whose requests have just arrived.
	askPatience = 100 * time.Millisecond
	// fairShare is how many connections a source may have without losing one while another source has more. It is more
	// than a kubelet ever has, and is reduced to a quarter of a low limit.
	fairShare = 32
)

// connections limits the number of connections. It evicts one to make room for a new one: first idle connections, then
// those without a request, then the one that has waited longest. It evicts connections of sources with many connections
// first.
type connections struct {
	max int

	mu     sync.Mutex
	closed *sync.Cond // a connection has been closed
	open   int
	source map[netip.Prefix]int
	lists  [3]list.List // by activity, the oldest first
}

// Activities of a connection.
const (
	idle = iota
	asking
	waiting
)

func newConnections(limit int) *connections {
	c := &connections{max: limit, source: map[netip.Prefix]int{}}
	c.closed = sync.NewCond(&c.mu)
	return c
}

// conn is one connection of a caller.
type conn struct {
	net.Conn
	owner   *connections
	source  netip.Prefix
	evicted chan struct{}

	call *collected // nil for HTTP; used by Read

	opened time.Time

	// list is guarded by owner.mu
	list   *list.List // nil if it cannot be evicted
	place  *list.Element
	closed bool
}

// Read first returns a collected call.
func (c *conn) Read(p []byte) (int, error) {
	if c.call == nil {
		return c.Conn.Read(p)
	}
	return c.call.read(p, c.Conn)
}

// Write limits how long a caller may leave data unread.
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

// progress moves the connection to the end of those without a request: its caller has sent something valid.
func (c *conn) progress() {
	c.owner.mu.Lock()
	defer c.owner.mu.Unlock()
	if c.list != nil {
		c.move(&c.owner.lists[asking])
	}
}

// requester is a connection that arrives together with its request, such as the guard's.
type requester interface{ HasRequest() bool }

// move moves the connection to the end of a list, or to none. The caller holds owner.mu.
func (c *conn) move(to *list.List) {
	if c.list != nil {
		c.list.Remove(c.place)
	}
	if c.list = to; to != nil {
		c.place = to.PushBack(c)
	}
}

// add adds a new connection. It may evict another one.
func (a *connections) add(nc net.Conn) *conn {
	c := &conn{Conn: nc, owner: a, source: connlimit.SourceOf(nc.RemoteAddr()), evicted: make(chan struct{}),
		opened: time.Now()}
	a.mu.Lock()
	defer a.mu.Unlock()
	for a.open >= a.max+max(minClosing, a.max/closingPart) {
		a.closed.Wait()
	}
	if a.open >= a.max {
		a.makeRoom()
	}
	a.open++
	a.source[c.source]++
	if r, ok := nc.(requester); ok && r.HasRequest() {
		c.move(&a.lists[waiting])
	} else {
		c.move(&a.lists[asking])
	}
	return c
}

// makeRoom evicts one connection, after askPatience if it has not sent its request. The caller holds mu, which makeRoom
// releases while it waits.
func (a *connections) makeRoom() {
	victim := a.victim()
	for victim != nil && victim.list == &a.lists[asking] {
		d := time.Until(victim.opened.Add(askPatience))
		if d <= 0 {
			break
		}
		a.mu.Unlock()
		time.Sleep(d) //nolint:forbidigo // at most askPatience
		a.mu.Lock()
		if a.open < a.max {
			return
		}
		victim = a.victim()
	}
	if victim != nil {
		a.evict(victim)
	}
}

// victim returns the connection to evict, or nil if all are protected. The caller holds mu.
func (a *connections) victim() *conn {
	for _, least := range []int{min(fairShare, a.max/4), 1, 0} { // a kubelet has one connection for each probe
		for what := range a.lists {
			for place := a.lists[what].Front(); place != nil; place = place.Next() {
				if c := place.Value.(*conn); a.source[c.source] > least {
					return c
				}
			}
		}
	}
	return nil
}

// evict evicts a connection. The caller holds mu.
func (a *connections) evict(c *conn) {
	waits := c.list == &a.lists[waiting]
	c.move(nil)
	close(c.evicted) // a waiting request is answered Errored
	if !waits {
		_ = c.Conn.Close() // the server notices, and calls Close
	}
}

// track is the ConnState hook of the server.
func (a *connections) track(nc net.Conn, state http.ConnState) {
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case c.list == nil && state == http.StateIdle: // evicted, and its request was answered
		_ = c.Conn.Close() // the server notices, and calls Close
	case c.list == nil:
	case state == http.StateActive:
		c.move(&a.lists[waiting])
	case state == http.StateIdle:
		c.move(&a.lists[idle])
	}
}

type connKey struct{}

// withConn is the ConnContext hook of the server: it adds the connection to the context of its requests.
func (a *connections) withConn(ctx context.Context, nc net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, nc)
}

// evicted returns a channel that is closed when the connection of ctx is evicted, nil if ctx has no connection.
func evicted(ctx context.Context) <-chan struct{} {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		return c.evicted
	}
	return nil
}

// pinConnection protects the connection of ctx from eviction.
func pinConnection(ctx context.Context) {
	if c, ok := ctx.Value(connKey{}).(*conn); ok {
		c.owner.mu.Lock()
		defer c.owner.mu.Unlock()
		c.move(nil)
	}
}

// unlimited lets an answer take as long as the caller waits, if the connection of ctx comes from the guard.
func unlimited(ctx context.Context) {
	c, ok := ctx.Value(connKey{}).(*conn)
	if !ok {
		return
	}
	if guarded, ok := c.Conn.(interface{ Unlimited() }); ok {
		guarded.Unlimited()
	}
}

// listener returns a listener that adds the connections accepted by l.
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
