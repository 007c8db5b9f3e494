package perport

import (
	"container/list"
	"context"
	"errors"
	"net"
	"sync"
	"time"
)

const (
	// maxVisitors limits the connections to a port for TCP probes.
	maxVisitors = 256
	// silence is how long a client may stay idle. A TCP probe disconnects at once.
	silence = 5 * time.Second
	// acceptPause is the pause after a failed accept, for instance for lack of file descriptors.
	acceptPause = 100 * time.Millisecond
)

// visitors are the connections to a port for TCP probes. A new connection may evict the oldest, since the kernel has
// already accepted the oldest client's connection, which is all that a TCP probe needs.
type visitors struct {
	max int

	mu   sync.Mutex
	open list.List // of visitor
}

// visitor is a connection of a client.
type visitor interface {
	net.Conn
	SetLinger(seconds int) error
}

var _ visitor = (*net.TCPConn)(nil)

// serve accepts connections until l is closed, and waits until all have ended. It closes them when ctx ends.
func (a *visitors) serve(ctx context.Context, l net.Listener) {
	var running sync.WaitGroup
	defer running.Wait()
	for {
		c, err := l.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil {
			select {
			case <-ctx.Done():
			case <-time.After(acceptPause):
			}
			continue
		}
		place := a.add(c.(visitor))
		running.Go(func() { a.visit(ctx, place) })
	}
}

// add registers a connection, and evicts the oldest if there are too many. It does not reset the evicted connection,
// since its client may not know yet that it has connected.
func (a *visitors) add(c visitor) *list.Element {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open.Len() >= a.max {
		oldest := a.open.Remove(a.open.Front()).(visitor)
		_ = oldest.Close() // its goroutine notices
	}
	return a.open.PushBack(c)
}

// visit waits until a client closes its connection. It never forwards data to the application.
func (a *visitors) visit(ctx context.Context, place *list.Element) {
	c := place.Value.(visitor)
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_ = c.SetReadDeadline(time.Now().Add(silence)) // Read returns the same error
	if n, _ := c.Read(make([]byte, 1)); n > 0 {
		_ = c.SetLinger(0) // reset it; if this fails, it is closed normally
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open.Remove(place) // no effect if it was evicted
	_ = c.Close()        // it may already be closed
}
