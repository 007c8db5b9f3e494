package conformance

import (
	"context"
	"maps"
	"slices"
	"sync"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// client is one stream. It sends only what a script says.
type client struct {
	s        *server
	protocol envoysim.Protocol
	wire     envoysim.Wire // nil before the first request
	end      context.CancelFunc
	// subscriptions by type, the last response of each type that the script received, and the last one that it ACKed.
	names       map[resource.Type]map[string]bool
	last, acked map[resource.Type]*envoysim.Response
	nonces      []string // of all responses that the script received, in their order

	reader sync.WaitGroup
	mu     sync.Mutex
	inbox  map[resource.Type][]*envoysim.Response // not yet received by the script
	err    error                                  // why the stream ended
}

func (s *server) client(p envoysim.Protocol) *client {
	return &client{
		s: s, protocol: p, names: map[resource.Type]map[string]bool{},
		last: map[resource.Type]*envoysim.Response{}, acked: map[resource.Type]*envoysim.Response{},
		inbox: map[resource.Type][]*envoysim.Response{},
	}
}

// send sends a request. The first request opens the stream and includes the node.
func (c *client) send(r *envoysim.Request) {
	c.s.t.Helper()
	if c.wire == nil {
		r.Node = node
		ctx, cancel := context.WithCancel(c.s.t.Context())
		wire, err := envoysim.OpenWire(ctx, c.protocol, c.s.conn)
		if err != nil {
			cancel()
			c.s.t.Fatal(err)
		}
		c.wire, c.end = wire, cancel
		c.reader.Go(c.read)
		c.s.t.Cleanup(c.close)
	}
	if err := c.wire.Send(r); err != nil {
		c.s.t.Fatalf("failed to send a request: %v", err)
	}
}

func (c *client) close() {
	c.end()
	c.reader.Wait()
}

func (c *client) read() {
	for {
		r, err := c.wire.Recv()
		c.mu.Lock()
		if err != nil {
			c.err = err
			c.mu.Unlock()
			return
		}
		c.inbox[r.Type] = append(c.inbox[r.Type], r)
		c.mu.Unlock()
	}
}

// next removes and returns the oldest response of a type, or nil.
func (c *client) next(t resource.Type) *envoysim.Response {
	c.s.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.inbox[t]) == 0 {
		return nil
	}
	r := c.inbox[t][0]
	c.inbox[t] = c.inbox[t][1:]
	if r.Nonce == "" || slices.Contains(c.nonces, r.Nonce) {
		c.s.t.Errorf("nonce %q of a response of type %s is empty or was used before", r.Nonce, t.Short())
	}
	c.nonces = append(c.nonces, r.Nonce)
	c.last[t] = r
	return r
}

// unread returns how many responses of a type are waiting, and the error that ended the stream, if any.
func (c *client) unread(t resource.Type) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.inbox[t]), c.err
}

// types returns the types of all responses.
func (c *client) types() []resource.Type {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.inbox))
}

// subscribe records a change of the subscription, and returns all its names.
func (c *client) subscribe(t resource.Type, add, remove []string) []string {
	if c.names[t] == nil {
		c.names[t] = map[string]bool{}
	}
	for _, name := range add {
		c.names[t][name] = true
	}
	for _, name := range remove {
		delete(c.names[t], name)
	}
	return slices.Sorted(maps.Keys(c.names[t]))
}
