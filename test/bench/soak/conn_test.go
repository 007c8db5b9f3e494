//go:build soak

package soak

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// Ways in which a proxy disconnects.
const (
	endClose  = iota // like a process that exits
	endReset         // like a process that crashes with unread data
	endVanish        // like a disconnected machine: the server gets no FIN or reset
)

// conn is a proxy's connection. It can stall, and end in each of these ways.
type conn struct {
	net.Conn
	m      *member
	how    atomic.Int32
	once   sync.Once
	closed chan struct{}
}

// Read implements net.Conn. It waits while the proxy is stalled.
func (c *conn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	for time.Now().UnixNano() < c.m.stalled.Load() {
		timer := time.NewTimer(poll)
		select {
		case <-timer.C:
		case <-c.closed:
			timer.Stop()
			return 0, net.ErrClosed
		}
	}
	return n, err
}

// Close implements net.Conn.
func (c *conn) Close() (err error) {
	c.once.Do(func() {
		close(c.closed)
		switch c.how.Load() {
		case endVanish:
			err = c.SetDeadline(time.Unix(1, 0)) // the reader ends, but the kernel keeps the connection
			c.m.s.gone.Lock()
			defer c.m.s.gone.Unlock()
			c.m.s.lost = append(c.m.s.lost, c)
			return
		case endReset:
			if tcp, ok := c.Conn.(*net.TCPConn); ok {
				err = tcp.SetLinger(0)
			}
		}
		if closeErr := c.Conn.Close(); err == nil {
			err = closeErr
		}
	})
	return err
}
