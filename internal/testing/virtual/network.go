// Package virtual replaces the kernel's network for tests in virtual time (testing/synctest).
package virtual

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"
)

const (
	// firstPort and lastPort bound the ports for listeners on port 0 and for dialers.
	firstPort, lastPort = 30000, 49999
	// backlog is how many connections may wait for Accept.
	backlog = 16
	// cutInterval is how often a dialer checks whether a cut link has healed.
	cutInterval = 100 * time.Millisecond
)

// Network connects hosts without sockets, since a goroutine that waits for the kernel would stop the time of its
// bubble. As in TCP, a cut link loses no data: the data arrives once the link is healed, unless either end gives up
// before.
type Network struct {
	// BufferBytes is how much unread data a connection buffers. Default: no limit. It must not change while connections
	// exist.
	BufferBytes int

	mu        sync.Mutex
	changed   *sync.Cond
	listeners map[string]*listener // by address
	cut       map[[2]string]bool
	conns     map[*conn]bool // open connections
	ports     uint16
}

// NewNetwork returns a network without listeners.
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

// Isolate cuts a host from all others, or reconnects it. Links that were cut separately stay cut.
func (n *Network) Isolate(host string, cut bool) { n.SetCut("", host, cut) }

// Reset closes both ends of a host's connections, as its kernel does when a process is killed.
func (n *Network) Reset(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.link[0] == host || c.link[1] == host {
			c.end(syscall.ECONNRESET)
		}
	}
	n.changed.Broadcast()
}

func (n *Network) isCut(a, b string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.isDown(Link(a, b))
}

// isDown reports whether a link is cut. The caller holds mu.
func (n *Network) isDown(link [2]string) bool {
	return n.cut[link] || n.cut[Link("", link[0])] || n.cut[Link("", link[1])]
}

// nextPort returns an unused port. The caller holds mu.
func (n *Network) nextPort() uint16 {
	n.ports++
	return firstPort + n.ports%(lastPort-firstPort+1)
}

// listener of an address.
type listener struct {
	network *Network
	address net.Addr
	accept  chan net.Conn
	closed  chan struct{}
	close   func()
}

// Listen is like net.ListenConfig.Listen. network is tcp, tcp4, tcp6 or unix. A TCP address has an IP address, or no
// host for all hosts. Port 0 selects a free port.
func (n *Network) Listen(_ context.Context, network, address string) (net.Listener, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	at, err := addressOf(network, address)
	if err != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Err: err}
	}
	if tcp, ok := at.(*net.TCPAddr); ok && tcp.Port == 0 {
		tcp.Port = int(n.nextPort())
	}
	if n.listeners[at.String()] != nil {
		return nil, &net.OpError{Op: "listen", Net: network, Addr: at, Err: os.NewSyscallError("bind", syscall.EADDRINUSE)}
	}
	l := &listener{network: n, address: at, accept: make(chan net.Conn, backlog), closed: make(chan struct{})}
	l.close = sync.OnceFunc(func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.listeners, at.String())
		close(l.closed)
	})
	n.listeners[at.String()] = l
	return l, nil
}

// Without returns the Listen of a machine that lacks an IP address.
func (n *Network) Without(ip string) func(ctx context.Context, network, address string) (net.Listener, error) {
	return func(ctx context.Context, network, address string) (net.Listener, error) {
		if host, _, _ := net.SplitHostPort(address); host == ip {
			at, err := addressOf(network, address)
			if err == nil {
				err = os.NewSyscallError("bind", syscall.EADDRNOTAVAIL)
			}
			return nil, &net.OpError{Op: "listen", Net: network, Addr: at, Err: err}
		}
		return n.Listen(ctx, network, address)
	}
}

// addressOf parses an address of a listener or a dialer.
func addressOf(network, address string) (net.Addr, error) {
	if network == "unix" {
		return &net.UnixAddr{Name: address, Net: network}, nil
	}
	if !strings.HasPrefix(network, "tcp") {
		return nil, net.UnknownNetworkError(network)
	}
	if strings.HasPrefix(address, ":") {
		address = "[::]" + address
	}
	at, err := netip.ParseAddrPort(address)
	if host, _, split := net.SplitHostPort(address); err != nil && split == nil { // names do not resolve
		return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
	}
	if err != nil {
		return nil, err
	}
	return net.TCPAddrFromAddrPort(at), nil
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accept:
		return c, nil
	case <-l.closed:
		return nil, &net.OpError{Op: "accept", Net: l.address.Network(), Addr: l.address, Err: net.ErrClosed}
	}
}

// Close implements net.Listener. It resets connections that were not accepted.
func (l *listener) Close() error {
	l.close()
	for {
		select {
		case c := <-l.accept:
			c.(*conn).reset()
		default:
			return nil
		}
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr { return l.address }

// DialFrom returns a function like net.Dialer.DialContext that connects from a host, which is an IP address.
func (n *Network) DialFrom(host string) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		c, err := n.dial(ctx, host, network, address)
		if err != nil {
			at, _ := addressOf(network, address) // nil in the error if parsing failed
			return nil, &net.OpError{Op: "dial", Net: network, Addr: at, Err: err}
		}
		return c, nil
	}
}

func (n *Network) dial(ctx context.Context, from, network, address string) (net.Conn, error) {
	to, err := addressOf(network, address)
	if err != nil {
		return nil, err
	}
	link := Link(from, from) // a Unix socket belongs to the host
	if tcp, ok := to.(*net.TCPAddr); ok {
		link = Link(from, tcp.IP.String())
	}
	for n.isCut(link[0], link[1]) {
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(cutInterval):
		}
	}
	l, client, server, err := n.connect(from, to, link)
	if err != nil {
		return nil, err
	}
	select {
	case l.accept <- server:
		return client, nil
	case <-l.closed:
		err = os.NewSyscallError("connect", syscall.ECONNREFUSED)
	case <-ctx.Done():
		err = ctx.Err()
	}
	return nil, errors.Join(err, client.Close(), server.Close())
}

// connect finds the listener of an address, and connects to it.
func (n *Network) connect(from string, to net.Addr, link [2]string) (l *listener, client, server *conn, err error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	tcp, isTCP := to.(*net.TCPAddr)
	if !isTCP {
		if l = n.listeners[to.String()]; l == nil {
			return nil, nil, nil, os.NewSyscallError("connect", syscall.ENOENT)
		}
		client, server = n.pipe(&net.UnixAddr{Net: "unix"}, to, link)
		return l, client, server, nil
	}
	for _, host := range []net.IP{tcp.IP, net.IPv4zero, net.IPv6zero} {
		if l == nil {
			l = n.listeners[(&net.TCPAddr{IP: host, Port: tcp.Port}).String()]
		}
	}
	if l == nil {
		return nil, nil, nil, os.NewSyscallError("connect", syscall.ECONNREFUSED)
	}
	local, err := netip.ParseAddr(from)
	if err != nil {
		return nil, nil, nil, err
	}
	client, server = n.pipe(net.TCPAddrFromAddrPort(netip.AddrPortFrom(local, n.nextPort())), to, link)
	return l, client, server, nil
}
