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
	// maxVisitors is how many connections a port for TCP probes may have at once.
	maxVisitors = 256
	// silence is how long a client may send nothing. One of a TCP probe goes at once.
	silence = 5 * time.Second
	// acceptPause is how long no connection is accepted after accepting one has failed, for instance since there are no file descriptors.
	acceptPause = 100 * time.Millisecond
)

// visitors are the connections to a port for TCP probes. Old ones make room for new ones: the kernel has told each client that it is
// connected, which is all that a TCP probe wants.
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

// serve accepts connections until l is closed, and waits for them. They end with ctx.
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

// add makes room if need be. The one that makes room is not reset: its client may not know yet that it has connected.
func (a *visitors) add(c visitor) *list.Element {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.open.Len() >= a.max {
		oldest := a.open.Remove(a.open.Front()).(visitor)
		_ = oldest.Close() // its goroutine notices
	}
	return a.open.PushBack(c)
}

// visit waits until a client closes its connection. Nothing that it sends gets to the application.
func (a *visitors) visit(ctx context.Context, place *list.Element) {
	c := place.Value.(visitor)
	defer context.AfterFunc(ctx, func() { _ = c.Close() })()
	_ = c.SetReadDeadline(time.Now().Add(silence)) // an error will be that of Read, too
	if n, _ := c.Read(make([]byte, 1)); n > 0 {
		_ = c.SetLinger(0) // reset it; if this fails, it is closed in the usual way
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.open.Remove(place) // nothing if it has made room
	_ = c.Close()        // it may be closed already
}
