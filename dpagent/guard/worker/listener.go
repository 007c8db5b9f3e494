package worker

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// listener accepts the connections that the guard passes on.
type listener struct {
	channel *net.UnixConn
	address net.Addr
	buffer  []byte // used by Accept

	mu     sync.Mutex
	conns  map[uint32]*conn // connections that the server has, or whose request is not complete yet
	closed bool             // the server has called Close
}

func newListener(channel *net.UnixConn, address net.Addr) *listener {
	return &listener{channel: channel, address: address, buffer: make([]byte, wire.MaxMessage), conns: map[uint32]*conn{}}
}

// Accept returns the next connection. It also receives which clients have gone, so the server should always call it again.
// It must not be called concurrently.
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

// acceptError returns the error of Accept when the channel has ended: the server has closed the listener, or the guard has
// ended, and then the kernel kills this process, too.
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

// addRequest adds bytes of a request to its connection. It returns the connection once the request is complete.
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

// splitRemote splits off the client's address: the length of the IP address, the IP address, and the port.
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

// forget removes a connection. mu is held.
func (l *listener) forget(c *conn) {
	delete(l.conns, c.id)
	l.closeIfIdle()
}

func (l *listener) closeIfIdle() {
	if l.closed && len(l.conns) == 0 {
		_ = l.channel.Close() // nothing is left to send
	}
}

// Close ends Accept. Connections that the server has can still be answered; the guard keeps the others.
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

// Addr returns the address of the virtual port.
func (l *listener) Addr() net.Addr { return l.address }
