package guard

import (
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// conn is one connection of the guard's, as a server sees it: a request to be read, and an answer to be written.
type conn struct {
	l      *listener
	id     uint32
	remote net.Addr
	data   []byte // of the request, not read yet; the listener's until Accept
	begin  bool   // a hook: say so before the request is read
	served bool   // by Accept; the listener's
	wake   chan struct{}

	mu       sync.Mutex
	gone     bool // nobody waits for an answer
	wrote    bool // an answer has begun: there is no second request
	closed   bool
	deadline time.Time // of Read
}

func newConn(l *listener, id uint32, remote netip.AddrPort, hook bool) *conn {
	return &conn{l: l, id: id, remote: net.TCPAddrFromAddrPort(remote), begin: hook, wake: make(chan struct{}, 1)}
}

// leave says that nobody waits for the answer.
func (c *conn) leave() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.notify()
}

func (c *conn) notify() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// Read gives the request, then waits for the end of the connection.
func (c *conn) Read(b []byte) (int, error) {
	if len(c.data) > 0 {
		return c.take(b)
	}
	for {
		deadline, err := c.state()
		if err != nil {
			return 0, err
		}
		c.wait(deadline)
	}
}

// wait returns when the state has changed, or the deadline has passed.
func (c *conn) wait(deadline time.Time) {
	if deadline.IsZero() {
		<-c.wake
		return
	}
	timer := time.NewTimer(time.Until(deadline))
	defer timer.Stop()
	select {
	case <-c.wake:
	case <-timer.C:
	}
}

// take reads of the request. Of a hook, the guard hears first: it will not give it to another worker then.
func (c *conn) take(b []byte) (int, error) {
	if _, err := c.state(); err != nil {
		return 0, err
	}
	if c.begin {
		if err := c.send(wire.Begun, nil); err != nil {
			return 0, err
		}
		c.begin = false
	}
	n := copy(b, c.data)
	c.data = c.data[n:]
	return n, nil
}

// state returns why Read ends, or when it has to.
func (c *conn) state() (deadline time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return time.Time{}, net.ErrClosed
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return time.Time{}, os.ErrDeadlineExceeded
	case c.gone, c.wrote && len(c.data) == 0:
		return time.Time{}, io.EOF
	}
	return c.deadline, nil
}

func (c *conn) send(kind wire.Kind, payload []byte) error {
	message := make([]byte, 0, wire.HeaderSize+len(payload))
	message = append(wire.Header{Kind: kind, ID: c.id}.Append(message), payload...)
	_, err := c.l.channel.Write(message)
	return err
}

// Write answers. It does not wait for the client, so that it needs no deadline.
func (c *conn) Write(b []byte) (n int, err error) {
	for n < len(b) {
		if !c.writable() {
			return n, net.ErrClosed
		}
		piece := b[n:min(len(b), n+wire.MaxPayload)]
		if err := c.send(wire.Answer, piece); err != nil {
			return n, err
		}
		n += len(piece)
	}
	return n, nil
}

func (c *conn) writable() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrote = true
	return !c.gone && !c.closed
}

// Close ends the answer.
func (c *conn) Close() error {
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return net.ErrClosed
	}
	c.closed = true
	gone := c.gone
	c.notify()
	c.mu.Unlock()
	var err error
	if !gone {
		err = c.send(wire.End, nil)
	}
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	c.l.forget(c)
	return err
}

// LocalAddr is the address of the port.
func (c *conn) LocalAddr() net.Addr { return c.l.address }

// RemoteAddr is that of whoever asks.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline is SetReadDeadline: Write waits for nobody.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline does nothing: Write waits for nobody.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline sets when Read gives up.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	c.notify()
	return nil
}
