// Package connlimit limits how many connections a server has, and keeps it open for those who have a question: at the limit a new
// connection takes the place of another. If it had to wait, whoever opens connections and asks nothing would keep everybody else out.
package connlimit

import (
	"cmp"
	"crypto/tls"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync"
)

// Limiter limits the connections of one server. Its methods may be called concurrently.
type Limiter struct {
	limit int

	mu     sync.Mutex
	open   []*conn // by their last change of activity, the oldest first
	source map[netip.Addr]int
}

// New returns a Limiter for up to limit connections.
func New(limit int) *Limiter {
	return &Limiter{limit: limit, source: map[netip.Addr]int{}}
}

// conn is one connection of a caller.
type conn struct {
	net.Conn
	owner  *Limiter
	source netip.Addr // zero on a Unix socket

	answered bool // a request of it is being answered; guarded by owner.mu
}

// Close may be called more than once.
func (c *conn) Close() error {
	c.owner.mu.Lock()
	c.owner.remove(c)
	c.owner.mu.Unlock()
	return c.Conn.Close()
}

// add adds a new connection, and may close another for it.
func (l *Limiter) add(nc net.Conn) *conn {
	c := &conn{Conn: nc, owner: l}
	if address, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		c.source = address.AddrPort().Addr()
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.open) >= l.limit {
		victim := l.leastUseful()
		l.remove(victim)
		_ = victim.Conn.Close() // the server notices, and calls Close
	}
	l.open = append(l.open, c)
	l.source[c.source]++
	return c
}

// leastUseful returns a connection of a source that has most of them: an idle one or one without a request, else one that is being answered;
// of these the oldest. It needs mu.
func (l *Limiter) leastUseful() *conn {
	return slices.MinFunc(l.open, func(x, y *conn) int {
		switch more := cmp.Compare(l.source[y.source], l.source[x.source]); {
		case more != 0:
			return more
		case x.answered == y.answered:
			return 0
		case x.answered:
			return 1
		}
		return -1
	})
}

// remove removes a connection, unless it has been removed already. It needs mu.
func (l *Limiter) remove(c *conn) {
	i := slices.Index(l.open, c)
	if i < 0 {
		return
	}
	l.open = slices.Delete(l.open, i, i+1)
	if l.source[c.source]--; l.source[c.source] == 0 {
		delete(l.source, c.source)
	}
}

// ConnState is a hook for http.Server, which needs it to prefer connections that ask nothing where one is to be closed. A connection of
// HTTP/2 is active while it has a stream.
func (l *Limiter) ConnState(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok || state != http.StateActive && state != http.StateIdle {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if i := slices.Index(l.open, c); i >= 0 {
		c.answered = state == http.StateActive
		l.open = append(slices.Delete(l.open, i, i+1), c)
	}
}

// Listener returns a listener that counts the connections which l accepts.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return limited{inner, l} }

type limited struct {
	net.Listener
	owner *Limiter
}

// Accept implements net.Listener.
func (l limited) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return l.owner.add(c), nil
}
