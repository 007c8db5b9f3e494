package probe

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
)

// caller is a connection from an address.
type caller struct {
	net.Conn
	from   string
	closed bool
}

func (c *caller) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(c.from), Port: 1} }

func (c *caller) Close() error {
	c.closed = true
	return nil
}

// crowd adds connections of callers, one from each address.
func crowd(a *connections, from ...string) (callers []*caller, conns []*conn) {
	for _, ip := range from {
		c := &caller{from: ip}
		callers = append(callers, c)
		conns = append(conns, a.add(c))
	}
	return callers, conns
}

func ended(c *conn) bool {
	select {
	case <-c.evicted:
		return true
	default:
		return false
	}
}

// The least useful connection is evicted first: idle ones, then those without a request, then those that have waited
// longest.
func TestEvict(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newConnections(4)
		callers, conns := crowd(a, "192.0.2.1", "192.0.2.1", "192.0.2.1", "192.0.2.1")
		a.track(conns[0], http.StateActive)
		a.track(conns[2], http.StateActive)
		a.track(conns[2], http.StateIdle)
		// waiting: 0; asking: 1, 3; idle: 2
		for i, want := range []int{2, 1, 3} {
			_, more := crowd(a, "192.0.2.1")
			a.track(more[0], http.StateActive)
			if !ended(conns[want]) || !callers[want].closed {
				t.Errorf("for caller %d: connection %d is still open", i, want)
			}
			_ = conns[want].Close() // as the server does
		}
		if ended(conns[0]) {
			t.Fatal("the connection that waits for a verdict was evicted before others")
		}
		crowd(a, "192.0.2.1")
		if !ended(conns[0]) || callers[0].closed {
			t.Error("the request that has waited longest was cut, want it answered")
		}
		a.track(conns[0], http.StateIdle) // the caller has its answer
		if !callers[0].closed {
			t.Error("an evicted connection stays open after its answer")
		}
	})
}

// A kubelet, which has few connections, loses none to a caller with many.
func TestEvictIsFair(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newConnections(fairShare + 2)
		_, kubelet := crowd(a, "192.0.2.1")
		a.track(kubelet[0], http.StateActive)
		var waiting []*conn
		for range 2 * fairShare {
			_, flood := crowd(a, "192.0.2.66")
			a.track(flood[0], http.StateActive)
			waiting = slices.DeleteFunc(append(waiting, flood...), func(c *conn) bool {
				return ended(c) && c.Close() == nil // as the server does
			})
		}
		if ended(kubelet[0]) {
			t.Error("the kubelet's connection was ended")
		}
	})
}

func TestPinned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newConnections(1)
		_, hook := crowd(a, "192.0.2.1")
		a.track(hook[0], http.StateActive)
		pinConnection(a.withConn(t.Context(), hook[0]))
		crowd(a, "192.0.2.1", "192.0.2.1")
		if ended(hook[0]) {
			t.Error("the connection of a hook was ended")
		}
	})
}

// withRequest is a connection that arrives together with its request.
type withRequest struct{ *caller }

func (withRequest) HasRequest() bool { return true }

// A request that has arrived is answered, even if nothing has read it yet, since an aborted connection would be a
// Failure.
func TestEvictWithRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newConnections(1)
		first := &caller{from: "192.0.2.1"}
		c := a.add(withRequest{first})
		crowd(a, "192.0.2.1")
		if !ended(c) || first.closed {
			t.Errorf("evicted = %v, closed = %v, want it evicted but not closed", ended(c), first.closed)
		}
	})
}

// The number of connections never exceeds the limit by more than the allowance for closing ones.
func TestHardLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newConnections(8)
		_, conns := crowd(a, make([]string, 8+minClosing)...)
		taken := make(chan *conn, 1)
		go func() { taken <- a.add(&caller{from: "192.0.2.1"}) }()
		synctest.Wait()
		if len(taken) > 0 {
			t.Error("too many connections")
		}
		_ = conns[0].Close()
		_ = conns[0].Close() // twice, as the server does
		_ = (<-taken).Close()
		for _, c := range conns {
			_ = c.Close()
		}
		if a.open != 0 || len(a.source) != 0 {
			t.Errorf("%d connections of %d sources remain", a.open, len(a.source))
		}
	})
}

func TestLacking(t *testing.T) {
	for errno, want := range map[syscall.Errno]verdict{
		syscall.EMFILE: errored, syscall.ENFILE: errored, syscall.ENOBUFS: errored, syscall.EADDRNOTAVAIL: errored, syscall.EPERM: errored,
		syscall.ECONNREFUSED: failure, syscall.EHOSTUNREACH: failure, syscall.ETIMEDOUT: failure, syscall.ECONNRESET: failure,
	} {
		if got := failureOf(&net.OpError{Op: "dial", Net: "tcp", Err: errno}); got.verdict != want {
			t.Errorf("%s: verdict = %s, want %s", errno, got.verdict, want)
		}
	}
	for _, err := range []error{io.EOF, context.DeadlineExceeded, errors.New("x")} {
		if got := failureOf(err); got.verdict != failure || got.reason != err.Error() {
			t.Errorf("%v: %+v, want Failure", err, got)
		}
	}
}
