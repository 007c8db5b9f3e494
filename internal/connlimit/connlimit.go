// Package connlimit shares the places of a server among its clients, by source. At the limit a new connection takes the place of another:
// if it had to wait, a client that opens connections and sends no request would keep all others out. The source with the most connections
// loses first, and of its connections the one that has been idle for longest. Sources with few are as good as each other.
package connlimit

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"net/http"
	"net/netip"
	"time"
)

// Source returns the source that a caller counts for: its IPv4 address, or the /64 of its IPv6 address, all of which one host may own.
func Source(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	source, _ := ip.Prefix(bits) // fails for the zero Addr, which is a source as well
	return source
}

// SourceOf returns the Source of a connection from an address. All Unix sockets are one, the zero Prefix.
func SourceOf(address net.Addr) netip.Prefix {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return Source(tcp.AddrPort().Addr())
	}
	return netip.Prefix{}
}

// acceptPatience is how long a caller may take to ask before it makes room: a flood from many addresses would else close a connection in which the question has
// just arrived.
const acceptPatience = 20 * time.Millisecond

// Limiter limits the connections of one server. Its methods may be called concurrently.
type Limiter struct {
	places *Places[netip.Prefix]
	pace   *pace
}

// New returns a Limiter for up to limit connections.
func New(limit int) *Limiter {
	return &Limiter{places: NewPlaces[netip.Prefix](Options{Total: limit, Patience: acceptPatience})}
}

// Pace limits how fast connections are read, for servers for which reading is work, as with HTTP/2: a client that sends frames without requests would
// else take a processor. All sources that send share these bytes a second equally. The first few KiB of a connection are free, so that a
// request does not wait for others of the same source. It must be called before Listener.
func (l *Limiter) Pace(bytesPerSecond int) *Limiter {
	l.pace = newPace(bytesPerSecond)
	return l
}

// conn is one connection of a caller.
type conn struct {
	net.Conn
	place  *Place[netip.Prefix]
	pace   *pace // nil if there is no limit
	source netip.Prefix
	free   int             // bytes that are not charged; for the goroutine that reads
	ctx    context.Context //nolint:containedctx // it ends with the connection
	cancel context.CancelFunc
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	charged := max(0, n-c.free)
	c.free -= n - charged
	if c.pace == nil || charged == 0 {
		return n, err
	}
	if d := c.pace.charge(c.source, charged); d > 0 {
		pause := time.NewTimer(d)
		defer pause.Stop()
		select {
		case <-pause.C:
		case <-c.ctx.Done():
		}
	}
	return n, err
}

// Close may be called more than once.
func (c *conn) Close() error {
	c.place.Leave()
	c.cancel()
	return c.Conn.Close()
}

// SetLinger is that of a TCP connection.
func (c *conn) SetLinger(seconds int) error {
	tcp, ok := c.Conn.(interface{ SetLinger(seconds int) error })
	if !ok {
		return errors.ErrUnsupported
	}
	return tcp.SetLinger(seconds)
}

// ConnState is a hook for http.Server, which needs it to prefer connections that ask nothing where one is to be closed. A connection of
// HTTP/2 is active while it has a stream.
func (l *Limiter) ConnState(nc net.Conn, state http.ConnState) {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return
	}
	switch state {
	case http.StateActive:
		c.place.Busy()
	case http.StateIdle:
		c.place.Idle()
	default:
	}
}

// ConnContext is a hook for http.Server: what requests of a connection wait for ends with it. By itself the server does not notice that a connection was closed
// which has sent more than its request.
func (l *Limiter) ConnContext(ctx context.Context, nc net.Conn) context.Context {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.ctx, cancel)
	return ctx
}

// Begin has a connection that a Listener has accepted count as active until end is called, for servers without such a hook.
func Begin(nc net.Conn) (end func()) {
	c, ok := nc.(*conn)
	if !ok {
		return func() {}
	}
	return c.place.Begin()
}

// Listener returns a listener that counts the connections which l accepts.
func (l *Limiter) Listener(inner net.Listener) net.Listener { return limited{inner, l} }

type limited struct {
	net.Listener
	owner *Limiter
}

// Accept implements net.Listener.
func (l limited) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	source := SourceOf(nc.RemoteAddr())
	time.Sleep(l.owner.places.Ripens()) //nolint:forbidigo // for a moment, whatever happens
	ctx, cancel := context.WithCancel(context.Background())
	place := l.owner.places.Take(source, func() { // the server notices, and calls Close
		cancel()
		_ = nc.Close()
	})
	return &conn{Conn: nc, place: place, pace: l.owner.pace, source: source, free: freeBytes, ctx: ctx, cancel: cancel}, nil
}
