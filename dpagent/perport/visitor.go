package perport

import (
	"container/list"
	"context"
	"io"
	"net"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// maxVisitors is how many connections a port may have at once.
	maxVisitors = 256
	// silence is how long a client may send nothing. One of gRPC begins at once, and one of TCP goes at once.
	silence = 5 * time.Second
	// longestVisit limits a connection that Envoy has. Envoy's own limits are shorter, but for a stream.
	longestVisit = time.Hour
)

// visitors limits the number of connections. Silent ones make room for new ones, the oldest first.
type visitors struct {
	max int

	mu       sync.Mutex
	silent   list.List // of *visitor
	speaking int
}

func newVisitors(limit int) *visitors { return &visitors{max: limit} }

// visitor is a connection to a port for probes.
type visitor struct {
	*net.TCPConn
	owner *visitors

	// guarded by owner.mu
	place    *list.Element // in silent, nil if it is not there any more
	speaking bool
}

// add returns the visitor of a connection, nil if it is one too many, and closed. Neither it nor the one that makes room is reset: its
// client may not know yet that it has connected, which is all that a TCP probe wants.
func (a *visitors) add(c *net.TCPConn) *visitor {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.silent.Len()+a.speaking >= a.max {
		oldest := a.silent.Front()
		if oldest == nil {
			_ = c.Close() // nothing was sent on it
			return nil
		}
		v := oldest.Value.(*visitor)
		v.leaveSilent()
		_ = v.Close() // its goroutine notices
	}
	v := &visitor{TCPConn: c, owner: a}
	v.place = a.silent.PushBack(v)
	return v
}

// leaveSilent returns false if the visitor has left already. owner.mu is held.
func (v *visitor) leaveSilent() bool {
	if v.place == nil {
		return false
	}
	v.owner.silent.Remove(v.place)
	v.place = nil
	return true
}

// speaks records that the client has sent something. It returns false if the visitor had to make room.
func (v *visitor) speaks() bool {
	v.owner.mu.Lock()
	defer v.owner.mu.Unlock()
	if v.leaveSilent() {
		v.speaking = true
		v.owner.speaking++
	}
	return v.speaking
}

// leave ends the visit.
func (v *visitor) leave() {
	v.owner.mu.Lock()
	defer v.owner.mu.Unlock()
	v.leaveSilent()
	if v.speaking {
		v.owner.speaking--
	}
	_ = v.Close() // it may be closed already
}

// reset closes a connection so that nothing of it is left.
func reset(c *net.TCPConn) {
	_ = c.SetLinger(0) // if this fails, it is closed in the usual way
	_ = c.Close()
}

// serve handles a connection. A client that only wanted to connect closes it; nothing that one sends gets to the application but by
// Envoy.
func (h *holder) serve(ctx context.Context, v *visitor) {
	defer v.leave()
	defer context.AfterFunc(ctx, func() { _ = v.Close() })()
	var first [1]byte
	_ = v.SetReadDeadline(time.Now().Add(silence)) // an error will be that of Read, too
	if n, _ := v.Read(first[:]); n == 0 {
		return // it is closed, or says nothing
	}
	if !h.port.GRPC || !v.speaks() {
		reset(v.TCPConn)
		return
	}
	at := h.server.o.Socket(mesh.SocketGRPCProbe(uint32(h.port.Address.Port())))
	envoy, err := (&net.Dialer{Timeout: silence}).DialContext(ctx, at.Net, at.Name)
	if err != nil {
		h.logger.Debug("connection not passed on to envoy", "err", err)
		reset(v.TCPConn)
		return
	}
	pass(ctx, v, envoy, first[:])
}

// pass passes bytes between a client and Envoy until one of them ends. Those in first are the client's, and have been read.
func pass(ctx context.Context, v *visitor, envoy net.Conn, first []byte) {
	end := func() { _, _ = v.Close(), envoy.Close() } // both may be closed already
	defer end()
	defer context.AfterFunc(ctx, end)()
	deadline := time.Now().Add(longestVisit)
	_, _ = v.SetDeadline(deadline), envoy.SetDeadline(deadline) // errors will be those of reading, too
	if _, err := envoy.Write(first); err != nil {
		return
	}
	var asking sync.WaitGroup
	asking.Go(func() {
		defer end()
		_, _ = io.Copy(envoy, v.TCPConn) // either side ends when it likes
	})
	_, _ = io.Copy(v.TCPConn, envoy) // as above
	end()
	asking.Wait()
}
