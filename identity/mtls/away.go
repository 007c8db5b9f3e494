package mtls

import (
	"sync"
	"time"
)

// closeSoonAfter is how long a client may still read an answer.
const closeSoonAfter = 100 * time.Millisecond

// closeSoon closes a connection on which a call was refused, since the client's next one would come here again.
func (c *Credentials) closeSoon(g *guardedConn) {
	time.AfterFunc(closeSoonAfter, func() { c.closeAway(g) })
}

func (c *Credentials) closeAway(g *guardedConn) {
	if g.Close() == nil {
		c.metrics.closed.WithLabelValues(closedAway).Inc()
	}
}

// CloseAll closes the connections on which calls can be made. Clients connect again, and to another server if Options.Serves refuses their calls
// here and what they connect to has others.
func (c *Credentials) CloseAll() {
	for _, g := range c.settled.all() {
		c.closeAway(g)
	}
}

// connections are those that have ended their handshake, and are open.
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
