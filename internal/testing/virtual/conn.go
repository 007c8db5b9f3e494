package virtual

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
)

// conn is one end of a connection. network.mu guards all its fields; network.changed signals each change.
type conn struct {
	network      *Network
	local, other net.Addr
	link         [2]string
	peer         *conn
	received     []byte
	// ended is why this end is unusable; nil while usable.
	ended error
	// finished means that this end sends no more data.
	finished bool
	// aborts means that Close resets the connection.
	aborts bool
	read   deadline
	write  deadline
}

// deadline of one direction.
type deadline struct {
	at    time.Time
	timer *time.Timer
}

func (d *deadline) passed() bool { return !d.at.IsZero() && !time.Now().Before(d.at) }

// set schedules wake for a time.
func (d *deadline) set(at time.Time, wake func()) {
	d.stop()
	d.at = at
	if !at.IsZero() {
		d.timer = time.AfterFunc(time.Until(at), wake)
	}
}

func (d *deadline) stop() {
	if d.timer != nil {
		d.timer.Stop()
	}
}

// pipe returns the two ends of a connection. The caller holds mu.
func (n *Network) pipe(from, to net.Addr, link [2]string) (client, server *conn) {
	client = &conn{network: n, local: from, other: to, link: link}
	server = &conn{network: n, local: to, other: from, link: link, peer: client}
	client.peer = server
	n.conns[client], n.conns[server] = true, true
	return client, server
}

// end ends this end. The caller holds network.mu.
func (c *conn) end(why error) {
	if c.ended != nil {
		return
	}
	c.ended = why
	delete(c.network.conns, c)
	c.read.stop()
	c.write.stop()
}

// reset ends both ends, as if the process at this end was killed.
func (c *conn) reset() {
	c.network.mu.Lock()
	defer c.network.mu.Unlock()
	c.end(syscall.ECONNRESET)
	c.peer.end(syscall.ECONNRESET)
	c.network.changed.Broadcast()
}

func (c *conn) failed(op string, err error) error {
	return &net.OpError{Op: op, Net: c.local.Network(), Source: c.local, Addr: c.other, Err: err}
}

// Read implements net.Conn.
func (c *conn) Read(p []byte) (int, error) {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch {
		case c.ended != nil:
			return 0, c.failed("read", c.ended)
		case c.read.passed():
			return 0, c.failed("read", os.ErrDeadlineExceeded)
		case len(p) == 0:
			return 0, nil
		case n.isDown(c.link):
		case len(c.received) > 0:
			read := copy(p, c.received)
			c.received = c.received[read:]
			n.changed.Broadcast() // a writer may wait for buffer space
			return read, nil
		case c.peer.ended != nil && c.peer.aborts:
			return 0, c.failed("read", syscall.ECONNRESET)
		case c.peer.ended != nil || c.peer.finished:
			return 0, io.EOF
		}
		n.changed.Wait()
	}
}

// Write implements net.Conn.
func (c *conn) Write(p []byte) (written int, err error) {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for {
		switch {
		case c.ended != nil:
			return written, c.failed("write", c.ended)
		case c.finished, c.peer.ended != nil && !n.isDown(c.link):
			return written, c.failed("write", syscall.EPIPE)
		case c.write.passed():
			return written, c.failed("write", os.ErrDeadlineExceeded)
		}
		room := len(p)
		if n.BufferBytes > 0 {
			room = min(room, n.BufferBytes-len(c.peer.received))
		}
		if room > 0 { // otherwise two waiting writers would wake each other forever
			c.peer.received = append(c.peer.received, p[:room]...)
			p, written = p[room:], written+room
			n.changed.Broadcast()
		}
		if len(p) == 0 {
			return written, nil
		}
		n.changed.Wait()
	}
}

// Close implements net.Conn.
func (c *conn) Close() error {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	if c.ended != nil {
		return c.failed("close", net.ErrClosed)
	}
	c.end(net.ErrClosed)
	n.changed.Broadcast()
	return nil
}

// CloseWrite ends sending, like CloseWrite of a net.TCPConn.
func (c *conn) CloseWrite() error {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	c.finished = true
	n.changed.Broadcast()
	return nil
}

// SetLinger with 0 makes Close reset the connection: the peer reads the data that has arrived, then an error. Other
// values restore the default.
func (c *conn) SetLinger(seconds int) error {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	c.aborts = seconds == 0
	return nil
}

func (c *conn) LocalAddr() net.Addr  { return c.local }
func (c *conn) RemoteAddr() net.Addr { return c.other }

func (c *conn) SetDeadline(at time.Time) error {
	c.setDeadlines(at, &c.read, &c.write)
	return nil
}

func (c *conn) SetReadDeadline(at time.Time) error {
	c.setDeadlines(at, &c.read)
	return nil
}

func (c *conn) SetWriteDeadline(at time.Time) error {
	c.setDeadlines(at, &c.write)
	return nil
}

func (c *conn) setDeadlines(at time.Time, deadlines ...*deadline) {
	n := c.network
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, d := range deadlines {
		d.set(at, func() {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.changed.Broadcast()
		})
		if c.ended != nil {
			d.stop()
		}
	}
	n.changed.Broadcast()
}
