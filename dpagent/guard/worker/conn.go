package worker

import (
	"cmp"
	"io"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/internal/run"
)

// conn is a connection that the guard passes to the worker's HTTP server: one request to read, and one answer to write.
type conn struct {
	l        *listener
	id       uint32
	remote   net.Addr
	data     []byte // the part of the request that is not read yet
	announce bool   // the request is for a hook, so send Begun before it is read
	complete bool   // the whole request has arrived; used by the listener
	wake     run.Signal

	mu       sync.Mutex
	gone     bool   // the client no longer waits for an answer
	out      []byte // a message with the part of the answer that is not sent yet; nil before the first Write
	closed   bool
	frames   wire.Frames // of the answer; only for gRPC
	deadline time.Time   // deadline of Read
}

func newConn(l *listener, id uint32, remote netip.AddrPort, hook bool) *conn {
	return &conn{l: l, id: id, remote: net.TCPAddrFromAddrPort(remote), announce: hook, wake: run.NewSignal()}
}

// HasRequest reports that the request of a connection has arrived: the guard only passes on complete requests.
func (c *conn) HasRequest() bool { return true }

// clientGone records that the client no longer waits for the answer.
func (c *conn) clientGone() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	c.wake.Set()
}

// Read returns the request, and then blocks until the connection ends.
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

// wait waits until the state may have changed, or the deadline has passed.
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

// readRequest reads from the request. For a hook it first sends Begun, so that the guard never gives the hook to
// another worker.
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

// readState returns why Read has to return, or else its deadline.
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
	case c.out != nil && !c.l.grpc: // the request was answered, and a connection has only one
		return time.Time{}, cmp.Or(c.flush(), io.EOF)
	}
	return c.deadline, nil
}

func (c *conn) send(kind wire.Kind, payload []byte) error {
	message := make([]byte, 0, wire.HeaderSize+len(payload))
	message = append(wire.Header{Kind: kind, ID: c.id}.Append(message), payload...)
	_, err := c.l.channel.unix.Write(message)
	return err
}

// Unlimited lets the request take as long as the client waits. It ignores errors of the channel, since Write returns
// them, too.
func (c *conn) Unlimited() { _ = c.send(wire.Unlimited, nil) }

// Write writes a part of the answer. It keeps a short answer until the server closes the connection or reads again,
// which the server does after each answer, so that the answer takes one message. Write does not wait for the client, so
// it needs no deadline.
func (c *conn) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone || c.closed {
		return 0, net.ErrClosed
	}
	if c.out == nil {
		c.out = wire.Header{Kind: wire.Answer, ID: c.id}.Append(make([]byte, 0,
			max(answerCap, wire.HeaderSize+min(len(b), wire.MaxPayload))))
	}
	for n := 0; ; {
		piece := b[n:min(len(b), n+wire.MaxMessage-len(c.out))]
		c.out = append(c.out, piece...)
		if n += len(piece); n == len(b) {
			break
		}
		if err := c.flush(); err != nil {
			return n, err
		}
	}
	if c.l.grpc && c.frames.Next(b) { // the answer ends here; until now another worker could answer
		return len(b), c.finish()
	}
	return len(b), nil
}

// answerCap is the initial capacity of an answer, in bytes: more than a verdict takes.
const answerCap = 512

// flush sends the kept part of the answer. The caller holds mu.
func (c *conn) flush() error {
	if len(c.out) <= wire.HeaderSize {
		return nil
	}
	_, err := c.l.channel.unix.Write(c.out)
	c.out = c.out[:wire.HeaderSize]
	return err
}

// Close ends the answer and the connection.
func (c *conn) Close() error {
	c.mu.Lock()
	closed := c.closed
	c.closed = true
	var err error
	if !closed {
		err = c.finish()
	}
	c.mu.Unlock()
	if closed {
		return net.ErrClosed
	}
	c.l.channel.forget(c)
	return err
}

// finish sends the end of the answer. The caller holds mu.
func (c *conn) finish() error {
	c.wake.Set()
	switch {
	case c.gone:
		return nil
	case c.out == nil:
		return c.send(wire.End, nil)
	}
	c.gone = true // the client has its answer
	c.out[0] = byte(wire.End)
	_, err := c.l.channel.unix.Write(c.out)
	return err
}

// LocalAddr returns the address of the port.
func (c *conn) LocalAddr() net.Addr { return c.l.address }

// RemoteAddr returns the address of the client.
func (c *conn) RemoteAddr() net.Addr { return c.remote }

// SetDeadline sets the deadline of Read. Write never waits.
func (c *conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// SetWriteDeadline does nothing: Write never waits.
func (c *conn) SetWriteDeadline(time.Time) error { return nil }

// SetReadDeadline sets the deadline of Read.
func (c *conn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = t
	c.wake.Set()
	return nil
}
