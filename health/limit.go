package health

import (
	"net"
	"sync"
)

// limitListener accepts at most n connections at once. What comes beyond is closed at once: a probe that waits in a
// queue behind idle connections would time out without a word.
type limitListener struct {
	net.Listener
	free chan struct{}
}

func newLimitListener(l net.Listener, n int) net.Listener {
	return &limitListener{Listener: l, free: make(chan struct{}, n)}
}

// Accept implements net.Listener.
func (l *limitListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &limitConn{Conn: conn, release: sync.OnceFunc(func() { <-l.free })}, nil
		default:
			_ = conn.Close() // it was never served
		}
	}
}

type limitConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn.
func (c *limitConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
