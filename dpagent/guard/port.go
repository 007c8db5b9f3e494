package guard

import (
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// port is a port on which the guard listens.
type port struct {
	wire.Port
	id      int // ID of its epoll events
	fd      int
	watched bool        // for connections
	limit   *wire.Limit // limit of the port's gRPC probe
}

func newPort(n, fd int, p wire.Port) *port {
	return &port{Port: p, id: portID + n, fd: fd, limit: &wire.Limit{Timeout: p.Timeout}}
}

// acceptAtOnce is the number of connections accepted before other events are handled.
const acceptAtOnce = 16

// acceptRetry is the pause after an accept error that leaves the connection in the queue, such as a lack of memory or
// file descriptors.
const acceptRetry = 50 * time.Millisecond

// accept accepts several connections at once: during a flood, the kubelet's connection may be queued behind others.
func (g *guard) accept(p *port) {
	for range acceptAtOnce {
		fd, err := g.from.accept(p.fd)
		switch err {
		case 0:
			g.admit(p, fd)
		case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS:
			g.shed()
			g.acceptAgainAt = g.now.Add(acceptRetry)
			_ = epollControl(g.epoll, syscall.EPOLL_CTL_DEL, p.fd, 0, 0) // cannot fail: the port is watched
			p.watched = false
			return
		default: // the queue is empty, or the client closed the connection
			return
		}
	}
}

// acceptAgain resumes watching all ports.
func (g *guard) acceptAgain() {
	for _, p := range g.ports {
		if p.watched {
			continue
		}
		if err := g.watch(p.fd, p.id, syscall.EPOLLIN); err != nil {
			g.acceptAgainAt = g.now.Add(acceptRetry)
			return
		}
		p.watched = true
	}
}

// requestEnds reports whether the request of a connection is complete, and then sets its limit. The first seen bytes
// were checked before. It closes the connection if the bytes are invalid for the port.
//
// A gRPC client first waits for the server's SETTINGS. The guard sends them, so that the worker gets the whole request
// at once, as with HTTP/1, and another worker can get it if the first one dies.
func (g *guard) requestEnds(c *conn, seen int) bool {
	if !c.port.GRPC {
		if !headEnds(c.in, seen) {
			return false
		}
		c.limit = g.limits[string(probeID(c.in))]
		return true
	}
	p := c.call.Next(c.in[seen:])
	if p.Greet {
		_, err := write(c.fd, settings)
		p.Wrong = err != 0
	}
	if p.Wrong {
		g.close(c)
		return false
	}
	c.limit = c.port.limit
	return p.Ended
}

var settings = []byte(wire.Settings)

// addresses returns the addresses of all ports.
func (g *guard) addresses() (all []string) {
	for _, p := range g.ports {
		all = append(all, p.Address)
	}
	return all
}

func (g *guard) listening() string { return strings.Join(g.addresses(), " ") }
