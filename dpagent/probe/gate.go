package probe

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// gate is a listener for gRPC that returns a connection once a whole call has arrived: clients that send nothing, or
// frames without end, do not reach the server. Connections from a guard pass at once: they already have a whole call.
type gate struct {
	net.Listener
	connections *connections
	maxCall     int // bytes
	accepted    chan acceptance
	ctx         context.Context //nolint:containedctx // ends when the listener is closed
	stop        context.CancelFunc
	running     sync.WaitGroup
}

type acceptance struct {
	conn *conn
	err  error
}

func newGate(c *connections, l net.Listener, maxCall int) *gate {
	g := &gate{Listener: l, connections: c, maxCall: maxCall, accepted: make(chan acceptance)}
	g.ctx, g.stop = context.WithCancel(context.Background())
	g.running.Go(g.run)
	return g
}

// Accept implements net.Listener.
func (g *gate) Accept() (net.Conn, error) {
	select {
	case a := <-g.accepted:
		return a.conn, a.err
	case <-g.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Close also closes the connections that the server has not accepted.
func (g *gate) Close() error {
	err := g.Listener.Close()
	g.stop()
	g.running.Wait()
	return err
}

func (g *gate) run() {
	for {
		nc, err := g.Listener.Accept()
		if err != nil {
			if !g.pass(acceptance{err: err}) || errors.Is(err, net.ErrClosed) {
				return
			}
			continue // the server waits a moment, or ends
		}
		c := g.connections.add(nc)
		if r, ok := nc.(requester); ok && r.HasRequest() {
			g.passOrClose(c)
			continue
		}
		g.running.Go(func() {
			defer context.AfterFunc(g.ctx, func() { _ = c.Conn.Close() })() // Read ends
			if c.collect(g.maxCall) {
				g.passOrClose(c)
			} else {
				_ = c.Close() // the server does not have it
			}
		})
	}
}

func (g *gate) pass(a acceptance) bool {
	select {
	case g.accepted <- a:
		return true
	case <-g.ctx.Done():
		return false
	}
}

func (g *gate) passOrClose(c *conn) {
	if !g.pass(acceptance{conn: c}) {
		_ = c.Close() // the server does not have it
	}
}

// collected is a complete call. Later data on the connection is dropped: it acknowledges Settings, which the server
// does not know were already sent.
type collected struct {
	text []byte
	left int // limit of the dropped data, in bytes
}

// collect reads until a call is complete. It returns false if no call is complete within most bytes.
func (c *conn) collect(most int) bool {
	_ = c.SetReadDeadline(time.Now().Add(headerTimeout)) // Read returns the same error
	const first = 1 << 10                                // more than the kubelet sends
	var call wire.Call
	for text := make([]byte, 0, first); ; {
		n, err := c.Conn.Read(text[len(text):cap(text)])
		next := text[len(text) : len(text)+n]
		text = text[:len(text)+n]
		p := call.Next(next)
		if p.Greet {
			c.progress()
			_, err = c.Write([]byte(wire.Settings))
		}
		switch {
		case p.Ended:
			c.call = &collected{text, most}
			return true
		case p.Wrong || err != nil || len(text) >= most:
			return false
		case len(text) == cap(text):
			text = append(make([]byte, 0, most), text...)
		}
	}
}

// errTooMuch ends a connection on which more data arrives than any probe needs.
var errTooMuch = errors.New("the caller has sent too much")

func (a *collected) read(p []byte, from net.Conn) (n int, err error) {
	if len(a.text) > 0 {
		n = copy(p, a.text)
		a.text = a.text[n:]
		return n, nil
	}
	for a.left > 0 {
		n, err = from.Read(p[:min(len(p), a.left)])
		if err != nil {
			return 0, err
		}
		a.left -= n
	}
	return 0, errTooMuch
}
