package worker

import (
	"maps"
	"net"
	"sync"
	"time"
)

// listener accepts the connections that the guard passes on from one port.
type listener struct {
	channel  *channel
	address  net.Addr
	grpc     bool
	accepted chan *conn
	once     sync.Once
	closed   chan struct{} // closed by Close
}

// pass waits until the server accepts the connection. If the listener is closed, the guard keeps the connection.
func (l *listener) pass(c *conn) {
	select {
	case l.accepted <- c:
	case <-l.closed:
		l.channel.forget(c)
	}
}

// Accept returns the next connection.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.channel.ended:
		return nil, &net.OpError{Op: "accept", Net: "tcp", Addr: l.address, Err: l.channel.err}
	}
}

// Close ends Accept. The server can still answer connections that it has accepted; the guard keeps the others.
func (l *listener) Close() error {
	err := net.ErrClosed
	l.once.Do(func() {
		err = nil
		close(l.closed)
		ch := l.channel
		ch.mu.Lock()
		defer ch.mu.Unlock()
		if ch.open--; ch.open > 0 {
			return
		}
		maps.DeleteFunc(ch.conns, func(_ uint32, c *conn) bool { return !c.complete })
		ch.closeIfIdle()
		_ = ch.unix.SetReadDeadline(time.Now()) // fails if closed already
	})
	return err
}

// Addr returns the address of the port.
func (l *listener) Addr() net.Addr { return l.address }
