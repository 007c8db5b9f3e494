package watchdog

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// forwarder forwards connections unchanged, and counts them and their bytes.
type forwarder struct {
	address                   string
	connections, sent, gotten atomic.Int64
}

// newForwarder listens on an address of the host until the benchmark ends.
func newForwarder(b *testing.B, host, to string) *forwarder {
	b.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		b.Fatal(err)
	}
	f := &forwarder{address: "https://" + l.Addr().String()}
	var running sync.WaitGroup
	running.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			f.connections.Add(1)
			running.Go(func() { f.pass(c, to) })
		}
	})
	b.Cleanup(func() {
		_ = l.Close()
		running.Wait()
	})
	return f
}

// pass forwards until one side closes.
func (f *forwarder) pass(from net.Conn, to string) {
	defer from.Close() //nolint:errcheck // it has ended
	other, err := net.Dial("tcp", to)
	if err != nil {
		return
	}
	defer other.Close() //nolint:errcheck // it has ended
	var running sync.WaitGroup
	running.Go(func() {
		_, _ = io.Copy(other, counting{from, &f.sent})
		_ = other.(*net.TCPConn).CloseWrite() //nolint:forcetypeassert // of tcp
	})
	_, _ = io.Copy(from, counting{other, &f.gotten})
	_ = from.Close()
	running.Wait()
}

type counting struct {
	io.Reader

	n *atomic.Int64
}

// Read implements io.Reader.
func (c counting) Read(p []byte) (int, error) {
	n, err := c.Reader.Read(p)
	c.n.Add(int64(n))
	return n, err
}
