package admin

import (
	"net"
	"sync"
)

// limitedListener closes at once what comes while n connections are open. It does not keep callers waiting: a full server
// must be told from one that hangs.
type limitedListener struct {
	net.Listener
	free chan struct{}
}

func limitConns(lis net.Listener, n int) net.Listener {
	return &limitedListener{Listener: lis, free: make(chan struct{}, n)}
}

// Accept implements net.Listener.
func (l *limitedListener) Accept() (net.Conn, error) {
	for {
		conn, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		select {
		case l.free <- struct{}{}:
			return &limitedConn{Conn: conn, release: sync.OnceFunc(func() { <-l.free })}, nil
		default:
			_ = conn.Close()
		}
	}
}

type limitedConn struct {
	net.Conn
	release func()
}

// Close implements net.Conn. It may be called more than once.
func (c *limitedConn) Close() error {
	defer c.release()
	return c.Conn.Close()
}
