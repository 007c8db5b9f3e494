// Package connlimit shares the places of a server among its clients, by source. At the limit a new connection evicts
// another one. If it had to wait instead, a client that opens connections and sends no request would lock all others
// out. The source with the most connections loses one first, and of its connections the one idle for longest. Sources
// with few connections count as equal.
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

// Source returns the source to which a caller belongs: its IPv4 address, or the /64 network of its IPv6 address, which
// a single host may own.
func Source(ip netip.Addr) netip.Prefix {
	ip = ip.Unmap().WithZone("")
	bits := ip.BitLen()
	if ip.Is6() {
		bits = 64
	}
	source, _ := ip.Prefix(bits) // the zero Addr yields an invalid prefix, which is a source, too
	return source
}

// SourceOf returns the Source of a connection's remote address. All Unix sockets are one source, the zero Prefix.
func SourceOf(address net.Addr) netip.Prefix {
	if tcp, ok := address.(*net.TCPAddr); ok {
		return Source(tcp.AddrPort().Addr())
	}
	return netip.Prefix{}
}

// acceptPatience is how long a caller may take to send its request before it can be evicted. Otherwise a flood from
// many addresses would close connections whose requests have just arrived.
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

// Pace limits how fast connections are read, for servers on which reading is costly, as with HTTP/2: otherwise a client
// that sends frames without requests would take a processor. All sending sources share these bytes per second equally.
// The first few KiB of a connection are free, so that a request does not wait for others of the same source. Call Pace
// before Listener.
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
	free   int             // remaining bytes that are not charged; only for the reading goroutine
	ctx    context.Context //nolint:containedctx // ends with the connection
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

// SetLinger calls SetLinger of the connection, if it has that method, as a net.TCPConn does.
func (c *conn) SetLinger(seconds int) error {
	tcp, ok := c.Conn.(interface{ SetLinger(seconds int) error })
	if !ok {
		return errors.ErrUnsupported
	}
	return tcp.SetLinger(seconds)
}

// ConnState is a hook for http.Server, which makes connections without a request close first. An HTTP/2 connection is
// active while it has a stream.
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

// ConnContext is a hook for http.Server, which ends waiting requests with their connection. The server itself does not
// notice a closed connection with unread data after the request.
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

// Begin makes a connection from a Listener count as active until end is called, for servers without such hooks.
func Begin(nc net.Conn) (end func()) {
	c, ok := nc.(*conn)
	if !ok {
		return func() {}
	}
	return c.place.Begin()
}

// Listener returns a listener that counts the connections that inner accepts.
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
	time.Sleep(l.owner.places.Ripens()) //nolint:forbidigo // bounded
	ctx, cancel := context.WithCancel(context.Background())
	place := l.owner.places.Take(source, func() { // the server notices, and calls Close
		cancel()
		_ = nc.Close()
	})
	return &conn{
		Conn: nc, place: place, pace: l.owner.pace, source: source, free: freeBytes, ctx: ctx, cancel: cancel,
	}, nil
}
