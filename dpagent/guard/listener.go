package guard

import (
	"errors"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// listener gives out connections that the guard has accepted.
type listener struct {
	channel *net.UnixConn
	address net.Addr
	ended   chan struct{} // closed when nothing is received any more

	mu     sync.Mutex
	conns  map[uint32]*conn // that the server has, or that wait for it
	queue  []*conn          // that wait for Accept
	closed bool             // by the server: no more Accept
	lost   error            // why nothing is received any more
	wake   sync.Cond
}

func start(channel *net.UnixConn, address net.Addr) *listener {
	l := &listener{channel: channel, address: address, ended: make(chan struct{}), conns: map[uint32]*conn{}}
	l.wake.L = &l.mu
	go l.receive()
	return l
}

// receive ends when the guard has, or when the server has closed the listener and all of its connections.
func (l *listener) receive() {
	defer close(l.ended)
	buffer := make([]byte, wire.MaxMessage)
	for {
		n, err := l.channel.Read(buffer)
		if err != nil {
			l.lose(err)
			return
		}
		h, payload, ok := wire.Parse(buffer[:n])
		if !ok {
			continue
		}
		switch h.Kind {
		case wire.Request:
			l.request(h, payload)
		case wire.Gone:
			l.gone(h.ID)
		}
	}
}

func (l *listener) lose(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lost = err
	for _, c := range l.conns {
		c.leave()
	}
	l.wake.Broadcast()
}

func (l *listener) request(h wire.Header, payload []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conns[h.ID]
	if c == nil {
		if l.closed {
			return // the guard answers when its time is up
		}
		remote, data, ok := splitRemote(payload)
		if !ok {
			return
		}
		payload = data
		c = newConn(l, h.ID, remote, h.Flags&wire.Hook != 0)
		l.conns[h.ID] = c
	}
	c.data = append(c.data, payload...)
	if h.Flags&wire.More != 0 {
		return
	}
	l.queue = append(l.queue, c)
	l.wake.Signal()
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

func (l *listener) gone(id uint32) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.conns[id]
	if c == nil {
		return
	}
	c.leave()
	if c.served {
		return // Close forgets it
	}
	l.queue = slices.DeleteFunc(l.queue, func(waiting *conn) bool { return waiting == c })
	l.forget(c)
}

// forget ends the last connection of a closed listener, with which the receiving ends. It is called with l.mu held.
func (l *listener) forget(c *conn) {
	delete(l.conns, c.id)
	l.endIfIdle()
}

func (l *listener) endIfIdle() {
	if l.closed && len(l.conns) == 0 {
		_ = l.channel.Close() // nothing is under way
	}
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for !l.closed && l.lost == nil && len(l.queue) == 0 {
		l.wake.Wait()
	}
	switch {
	case l.closed:
		return nil, net.ErrClosed
	case l.lost != nil:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: errors.Join(errors.New("the guard has gone"), l.lost)}
	}
	c := l.queue[0]
	c.served = true
	l.queue[0] = nil
	if l.queue = l.queue[1:]; len(l.queue) == 0 {
		l.queue = nil
	}
	return c, nil
}

// Close ends Accept. Connections that are under way may be answered; others are left to the guard.
func (l *listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return net.ErrClosed
	}
	l.closed = true
	l.queue = nil
	maps.DeleteFunc(l.conns, func(_ uint32, c *conn) bool { return !c.served })
	l.wake.Broadcast()
	l.endIfIdle()
	return nil
}

// Addr is the address of the port, which the guard owns.
func (l *listener) Addr() net.Addr { return l.address }
