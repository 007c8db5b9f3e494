package worker

import (
	"errors"
	"net"
	"net/netip"
	"sync"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// channel is the socket to the guard, which carries the connections of all listeners.
type channel struct {
	unix      net.Conn // each Write is one message, and each Read returns one
	listeners []*listener
	ended     chan struct{} // closed at the end of the channel, with the reason in err
	err       error

	mu    sync.Mutex
	conns map[uint32]*conn // connections that a server has accepted, or whose request is not complete yet
	open  int              // number of listeners that no server has closed
}

func newChannel(unix net.Conn) *channel {
	return &channel{unix: unix, conns: map[uint32]*conn{}, ended: make(chan struct{})}
}

func (ch *channel) add(address net.Addr, grpc bool) *listener {
	l := &listener{channel: ch, address: address, grpc: grpc, accepted: make(chan *conn), closed: make(chan struct{})}
	ch.listeners = append(ch.listeners, l)
	ch.open++
	return l
}

// start reads the guard's messages until all listeners are closed. Without listeners it reads nothing, and the channel
// stays open.
func (ch *channel) start() {
	if len(ch.listeners) == 0 {
		return
	}
	go func() {
		defer close(ch.ended)
		ch.err = ch.read()
	}()
}

// read handles messages about connections and disconnected clients. It returns when the channel has ended: because all
// listeners are closed, or because the guard has ended, and then the kernel kills this process, too.
func (ch *channel) read() error {
	buffer := make([]byte, wire.MaxMessage)
	for {
		n, err := ch.unix.Read(buffer)
		if err != nil {
			return ch.readError(err)
		}
		h, payload, ok := wire.Parse(buffer[:n])
		if !ok {
			continue
		}
		switch h.Kind {
		case wire.Request:
			if c := ch.addRequest(h, payload); c != nil {
				c.l.pass(c)
			}
		case wire.Gone:
			ch.clientGone(h.ID)
		}
	}
}

func (ch *channel) readError(err error) error {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	if ch.open == 0 {
		return net.ErrClosed
	}
	for _, c := range ch.conns {
		c.clientGone()
	}
	return errors.Join(errors.New("the guard has ended"), err)
}

// addRequest adds bytes of a request to its connection. It returns the connection once the request is complete.
func (ch *channel) addRequest(h wire.Header, payload []byte) *conn {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	c := ch.conns[h.ID]
	if c == nil {
		remote, data, ok := splitRemote(payload)
		if !ok || int(h.Port) >= len(ch.listeners) {
			return nil
		}
		payload = data
		c = newConn(ch.listeners[h.Port], h.ID, remote, h.Flags&wire.Hook != 0)
		ch.conns[h.ID] = c
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

func (ch *channel) clientGone(id uint32) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	switch c := ch.conns[id]; {
	case c == nil:
	case c.complete: // Close calls forget
		c.clientGone()
	default:
		delete(ch.conns, id)
	}
}

// forget removes a connection.
func (ch *channel) forget(c *conn) {
	ch.mu.Lock()
	defer ch.mu.Unlock()
	delete(ch.conns, c.id)
	ch.closeIfIdle()
}

// closeIfIdle closes the channel if it has no listeners and no connections. The caller holds mu.
func (ch *channel) closeIfIdle() {
	if ch.open == 0 && len(ch.conns) == 0 {
		_ = ch.unix.Close() // nothing is left to send
	}
}
