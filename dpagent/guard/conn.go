package guard

import (
	"cmp"
	"errors"
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
	l        *listener
	id       uint32
	remote   net.Addr
	data     []byte // of the request, not read yet
	announce bool   // a hook: say so before the request is read
	complete bool   // its request is whole; the listener's
	wake     chan struct{}

	mu       sync.Mutex
	gone     bool   // nobody waits for an answer
	out      []byte // a message with what was written and is not sent yet; not nil: there is no second request
	closed   bool
	deadline time.Time // of Read
}

func newConn(l *listener, id uint32, remote netip.AddrPort, hook bool) *conn {
	return &conn{l: l, id: id, remote: net.TCPAddrFromAddrPort(remote), announce: hook, wake: make(chan struct{}, 1)}
}

// clientGone says that nobody waits for the answer.
func (c *conn) clientGone() {
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
		return c.readRequest(b)
	}
	for {
		deadline, err := c.readState()
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

// readRequest reads of the request. Of a hook, the guard hears first: it will not give it to another worker then.
func (c *conn) readRequest(b []byte) (int, error) {
	if _, err := c.readState(); err != nil {
		return 0, err
	}
	if c.announce {
		if err := c.send(wire.Begun, nil); err != nil {
			return 0, err
		}
		c.announce = false
	}
	n := copy(b, c.data)
	c.data = c.data[n:]
	return n, nil
}

// readState returns why Read ends, or when it has to.
func (c *conn) readState() (deadline time.Time, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case c.closed:
		return time.Time{}, net.ErrClosed
	case !c.deadline.IsZero() && !time.Now().Before(c.deadline):
		return time.Time{}, os.ErrDeadlineExceeded
	case c.gone:
		return time.Time{}, io.EOF
	case c.out != nil: // there was one request, and this is its answer
		return time.Time{}, cmp.Or(c.flush(), io.EOF)
	}
	return c.deadline, nil
}

func (c *conn) send(kind wire.Kind, payload []byte) error {
	message := make([]byte, 0, wire.HeaderSize+len(payload))
	message = append(wire.Header{Kind: kind, ID: c.id}.Append(message), payload...)
	_, err := c.l.channel.Write(message)
	return err
}

// Write answers. Little is kept until the server closes the connection or reads again, as it does after each answer: then one
// message says it all. Write does not wait for the client, so that it needs no deadline.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.closed {
		return 0, net.ErrClosed
	}
	if c.out == nil {
		c.out = wire.Header{Kind: wire.Answer, ID: c.id}.Append(make([]byte, 0, max(answerCap, wire.HeaderSize+min(len(b), wire.MaxPayload))))
	}
	for n := 0; ; {
		piece := b[n:min(len(b), n+wire.MaxMessage-len(c.out))]
		c.out = append(c.out, piece...)
		if n += len(piece); n == len(b) {
			return n, nil
		}
		if err := c.flush(); err != nil {
			return n, err
		}
	}
}

// answerCap is the size of a message with a verdict, or more.
const answerCap = 512

// flush sends what is kept. It needs mu.
func (c *conn) flush() error {
	if len(c.out) <= wire.HeaderSize {
		return nil
	}
	_, err := c.l.channel.Write(c.out)
	c.out = c.out[:wire.HeaderSize]
	return err
}

// Close ends the answer.
func (c *conn) Close() error {
	err := c.finish()
	c.l.mu.Lock()
	defer c.l.mu.Unlock()
	if !errors.Is(err, net.ErrClosed) {
		c.l.forget(c)
	}
	return err
}

func (c *conn) finish() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return net.ErrClosed
	}
	c.closed = true
	c.notify()
	switch {
	case c.gone:
		return nil
	case c.out == nil:
		return c.send(wire.End, nil)
	}
	c.out[0] = byte(wire.End)
	_, err := c.l.channel.Write(c.out)
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
