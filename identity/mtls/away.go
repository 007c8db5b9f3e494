package mtls

import (
	"sync"
	"time"
)

// closeSoonAfter is the time for a client to read a response.
const closeSoonAfter = 100 * time.Millisecond

// closeSoon closes a connection after a rejected call, since the client would send its next call to the same replica.
func (c *Credentials) closeSoon(g *guardedConn) {
	time.AfterFunc(closeSoonAfter, func() { c.closeAway(g) })
}

func (c *Credentials) closeAway(g *guardedConn) {
	if g.Close() == nil {
		c.metrics.closed.WithLabelValues(closedAway).Inc()
	}
}

// CloseAll closes the connections that can make calls. Clients reconnect, to another server if Options.Serves rejects
// their calls here and their address has others.
func (c *Credentials) CloseAll() {
	for _, g := range c.settled.all() {
		c.closeAway(g)
	}
}

// connections are open connections after their handshake.
type connections struct {
	mu   sync.Mutex
	open map[*guardedConn]struct{}
}

func (c *connections) add(g *guardedConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open[g] = struct{}{}
}

func (c *connections) remove(g *guardedConn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, g)
}

func (c *connections) all() []*guardedConn {
	c.mu.Lock()
	defer c.mu.Unlock()
	all := make([]*guardedConn, 0, len(c.open))
	for g := range c.open {
		all = append(all, g)
	}
	return all
}
