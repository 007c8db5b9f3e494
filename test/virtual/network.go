// Package virtual has replicas of the control plane, and what they and agents speak through and keep, in memory and in virtual time (testing/synctest).
package virtual

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"
)

// Network connects hosts without sockets: what waits for the kernel would stop the time of the bubble. A link that is cut drops nothing, as TCP
// does not: what was sent arrives when it is healed, unless one of the two gives up before.
type Network struct {
	mu        sync.Mutex
	changed   *sync.Cond
	listeners map[string]*listener
	cut       map[[2]string]bool
	conns     map[*conn]bool // that are open
	ports     uint16
}

// NewNetwork returns one in which no host listens.
func NewNetwork() *Network {
	n := &Network{listeners: map[string]*listener{}, cut: map[[2]string]bool{}, conns: map[*conn]bool{}}
	n.changed = sync.NewCond(&n.mu)
	return n
}

// Link names the link of two hosts.
func Link(a, b string) [2]string { return [2]string{min(a, b), max(a, b)} }

// SetCut cuts the link of two hosts, or heals it.
func (n *Network) SetCut(a, b string, cut bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.cut[Link(a, b)] = cut
	n.changed.Broadcast()
}

// Isolate cuts a host from all others, or heals that. Links that are cut stay so.
func (n *Network) Isolate(host string, cut bool) { n.SetCut("", host, cut) }

func (n *Network) isCut(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isDown(Link(a, b))
}

// isDown needs mu.
func (n *Network) isDown(link [2]string) bool {
	return n.cut[link] || n.cut[Link("", link[0])] || n.cut[Link("", link[1])]
}

// listener of a host.
type listener struct {
	network *Network
	host    string
	accept  chan net.Conn
	closed  chan struct{}
	close   func()
}

// Listen listens on host, which is an address with its port.
func (n *Network) Listen(host string) net.Listener {
	l := &listener{network: n, host: host, accept: make(chan net.Conn, 16), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		if n.listeners[host] == l {
			delete(n.listeners, host)
		}
		close(l.closed)
	})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.listeners[host] = l
	return l
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener.
func (l *listener) Close() error {
	l.close()
	return nil
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return tcpAddress(l.host) }

func tcpAddress(text string) *net.TCPAddr {
	return net.TCPAddrFromAddrPort(netip.MustParseAddrPort(text))
}

var errRefused = errors.New("connection refused")

// Dial connects two hosts. from has no port.
func (n *Network) Dial(ctx context.Context, from, to string) (net.Conn, error) {
	host, _, err := net.SplitHostPort(to)
	if err != nil {
		return nil, err
	}
	for n.isCut(from, host) {
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("dial %s: %w", to, ctx.Err())
		case <-time.After(100 * time.Millisecond):
		}
	}
	n.mu.Lock()
	l := n.listeners[to]
	n.ports++
	client, server := n.pipe(net.TCPAddrFromAddrPort(netip.AddrPortFrom(netip.MustParseAddr(from), 30000+n.ports%20000)), tcpAddress(to), Link(from, host))
	n.mu.Unlock()
	if l == nil {
		return nil, errors.Join(fmt.Errorf("dial %s: %w", to, errRefused), client.Close(), server.Close())
	}
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		err = errRefused
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(fmt.Errorf("dial %s: %w", to, err), client.Close(), server.Close())
}

// conn is one end of a connection. All its fields are guarded by network.mu, whose changed is told of each change.
type conn struct {
	network      *Network
	local, other *net.TCPAddr
	link         [2]string
	peer         *conn
	received     []byte
	closed       bool
	readBy       time.Time
	timer        *time.Timer // of readBy
}

func (n *Network) pipe(from, to *net.TCPAddr, link [2]string) (client, server *conn) {
	client = &conn{network: n, local: from, other: to, link: link}
	server = &conn{network: n, local: to, other: from, link: link, peer: client}
	client.peer = server
	n.conns[client], n.conns[server] = true, true
	return client, server
}

// Reset closes the connections of a host, both ends, as its kernel does when a process is killed.
func (n *Network) Reset(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.link[0] == host || c.link[1] == host {
			c.end()
		}
	}
	n.changed.Broadcast()
}

// end needs network.mu.
func (c *conn) end() {
	c.closed = true
	delete(c.network.conns, c)
	if c.timer != nil {
		c.timer.Stop()
	}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch {
		case c.closed:
			return 0, net.ErrClosed
		case !c.readBy.IsZero() && !time.Now().Before(c.readBy):
			return 0, os.ErrDeadlineExceeded
		case n.isDown(c.link):
		case len(c.received) > 0:
			read := copy(p, c.received)
			c.received = c.received[read:]
			return read, nil
		case c.peer.closed:
			return 0, io.EOF
		}
		n.changed.Wait()
	}
}

// Write implements net.Conn. The kernel's buffers are endless here.
func (c *conn) Write(p []byte) (int, error) {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.closed || c.peer.closed && !n.isDown(c.link) {
		return 0, net.ErrClosed
	}
	c.peer.received = append(c.peer.received, p...)
	n.changed.Broadcast()
	return len(p), nil
}

// Close implements net.Conn.
func (c *conn) Close() error {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	c.end()
	n.changed.Broadcast()
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.other }

func (c *conn) SetDeadline(t time.Time) error    { return c.SetReadDeadline(t) }
func (c *conn) SetWriteDeadline(time.Time) error { return nil }
func (c *conn) SetReadDeadline(t time.Time) error {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	c.readBy = t
	if c.timer != nil {
		c.timer.Stop()
		c.timer = nil
	}
	if !t.IsZero() && !c.closed {
		c.timer = time.AfterFunc(time.Until(t), func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.changed.Broadcast()
		})
	}
	n.changed.Broadcast()
	return nil
}
