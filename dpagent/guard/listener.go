package guard

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// listener gives out connections that the guard has accepted.
type listener struct {
	channel *net.UnixConn
	address net.Addr
	buffer  []byte // Accept's

	mu     sync.Mutex
	conns  map[uint32]*conn // that the server has, or whose request is not whole yet
	closed bool             // by the server: no more Accept
}

func newListener(channel *net.UnixConn, address net.Addr) *listener {
	return &listener{channel: channel, address: address, buffer: make([]byte, wire.MaxMessage), conns: map[uint32]*conn{}}
}

// Accept returns the next connection. It also hears which clients have gone, so a server that does not come back to it answers some
// in vain. It is for one goroutine.
func (l *listener) Accept() (net.Conn, error) {
	for {
		n, err := l.channel.Read(l.buffer)
		if err != nil {
			return nil, l.acceptError(err)
		}
		h, payload, ok := wire.Parse(l.buffer[:n])
		if !ok {
			continue
		}
		switch h.Kind {
		case wire.Request:
			if c := l.addRequest(h, payload); c != nil {
				return c, nil
			}
		case wire.Gone:
			l.clientGone(h.ID)
		}
	}
}

// acceptError ends Accept: the server has closed the listener, or the guard has gone, and this process follows.
func (l *listener) acceptError(err error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	for _, c := range l.conns {
		c.clientGone()
	}
	return &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: errors.Join(errors.New("the guard has gone"), err)}
}

// addRequest returns a connection when its request is whole.
func (l *listener) addRequest(h wire.Header, payload []byte) *conn {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conns[h.ID]
	if c == nil {
		remote, data, ok := splitRemote(payload)
		if !ok {
			return nil
		}
		payload = data
		c = newConn(l, h.ID, remote, h.Flags&wire.Hook != 0)
		l.conns[h.ID] = c
	}
	c.data = append(c.data, payload...)
	c.complete = h.Flags&wire.More == 0
	if !c.complete {
		return nil
	}
	return c
}

// splitRemote takes the address of whoever asks: its length, the IP address, and the port.
func splitRemote(b []byte) (remote netip.AddrPort, rest []byte, ok bool) {
	if len(b) < 1 || len(b) < 1+int(b[0])+2 {
		return netip.AddrPort{}, nil, false
	}
	end := 1 + int(b[0])
	ip, ok := netip.AddrFromSlice(b[1:end])
	if !ok {
		return netip.AddrPort{}, nil, false
	}
	return netip.AddrPortFrom(ip, uint16(b[end])<<8|uint16(b[end+1])), b[end+2:], true
}

func (l *listener) clientGone(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch c := l.conns[id]; {
	case c == nil:
	case c.complete: // Close forgets it
		c.clientGone()
	default:
		delete(l.conns, id)
	}
}

// forget ends the last connection of a closed listener, after which nothing is said. It needs mu.
func (l *listener) forget(c *conn) {
	delete(l.conns, c.id)
	l.closeIfIdle()
}

func (l *listener) closeIfIdle() {
	if l.closed && len(l.conns) == 0 {
		_ = l.channel.Close() // nothing is under way
	}
}

// Close ends Accept. Connections that are under way may be answered; others are left to the guard.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	maps.DeleteFunc(l.conns, func(_ uint32, c *conn) bool { return !c.complete })
	l.closeIfIdle()
	_ = l.channel.SetReadDeadline(time.Now()) // it may be closed
	return nil
}

// Addr is the address of the port, which the guard owns.
func (l *listener) Addr() net.Addr { return l.address }
