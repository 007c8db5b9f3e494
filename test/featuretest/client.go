package featuretest

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// drainTime is Envoy's default, so no listener of a test drains to the end.
const drainTime = 10 * time.Minute

// Client is one proxy: a simulated Envoy, its connection, and a log of what it is sent.
type Client struct {
	t  *testing.T
	f  *Feature
	id mesh.ID

	conn   *grpc.ClientConn
	cancel context.CancelFunc
	reader sync.WaitGroup
	paused chan struct{} // nil while it reads

	mu       sync.Mutex
	envoy    *envoysim.Envoy
	changed  chan struct{} // closed at the next event
	err      error         // the end of the stream
	refuse   map[resource.Name]string
	log      []string
	received int
	markers  map[string]bool // that have been answered
	marked   int
}

// Connect connects a proxy of mesh default, or of another mesh as <mesh>/<name>.
func (f *Feature) Connect(proxy string, p envoysim.Protocol) *Client {
	f.t.Helper()
	if !strings.Contains(proxy, "/") {
		proxy = mesh.MakeID(mesh.DefaultMesh, proxy)
	}
	c := &Client{
		t: f.t, f: f, id: proxy, changed: make(chan struct{}), refuse: map[resource.Name]string{}, markers: map[string]bool{},
		envoy: envoysim.New(envoysim.Options{Node: proxy, Protocol: p, DrainTime: drainTime}),
	}
	f.t.Cleanup(c.Close)
	c.open()
	return c
}

// open opens a connection and a stream.
func (c *Client) open() {
	c.t.Helper()
	conn, err := c.f.dial(c.id)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	c.conn, c.cancel = conn, cancel
	w, err := envoysim.OpenWire(ctx, c.envoy.Protocol, conn)
	if err != nil {
		c.t.Fatalf("open stream of %s: %v", c.id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = nil
	c.reader.Go(func() { c.read(w) })
	c.envoy.Connect(func(r *envoysim.Request) { _ = w.Send(r) }) // the reader learns why the stream has ended
}

// Close ends the stream and its connection. The client keeps what it has.
func (c *Client) Close() {
	if c.cancel == nil {
		return
	}
	c.Resume()
	c.cancel()
	_ = c.conn.Close() // nothing more is sent
	c.reader.Wait()
	c.cancel = nil
}

// Reconnect opens a new stream on a new connection. Like Envoy, the client says what it has. The log is cleared.
func (c *Client) Reconnect() {
	c.t.Helper()
	c.Close()
	c.log = nil
	c.open()
}

// Restart has the Envoy restarted with a bootstrap that says that its agent takes records of plain text, or does not. The log is cleared.
func (c *Client) Restart(records bool) {
	c.t.Helper()
	c.Close()
	c.log = nil
	c.envoy = envoysim.New(envoysim.Options{Node: c.id, Protocol: c.envoy.Protocol, DrainTime: drainTime, Records: records})
	c.open()
}

// read reads responses until the stream ends.
func (c *Client) read(w envoysim.Wire) {
	for {
		r, err := w.Recv()
		c.mu.Lock()
		gate := c.paused
		c.mu.Unlock()
		if gate != nil {
			<-gate
		}
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.note(r)
			c.envoy.Take(r, envoysim.Refusals{Reason: func(p *envoysim.Resource) string { return c.refuse[p.Key] }})
		}
		close(c.changed)
		c.changed = make(chan struct{})
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// note writes a response into the log, without the answers to Sync. A list of the state of the world is logged as its
// changes. It needs mu.
func (c *Client) note(r *envoysim.Response) {
	marker := func(name string) bool {
		if !strings.HasPrefix(name, markerPrefix) {
			return false
		}
		c.markers[name] = true
		return true
	}
	put, gone := slices.DeleteFunc(r.Names(), marker), slices.DeleteFunc(c.envoy.Gone(r), marker)
	if total := len(r.Put) + len(r.Gone); total > 0 && len(put)+len(gone) == 0 && r.Type == resource.Endpoint {
		return
	}
	c.received++
	if c.envoy.Protocol == envoysim.SotW && (r.Type == resource.Cluster || r.Type == resource.Listener) {
		put = nil
		for _, p := range r.Put {
			if old := c.envoy.Get(p.Key); old == nil || old.Version != p.Version {
				put = append(put, p.Key.Name)
			}
		}
		slices.Sort(put)
	}
	line := append([]string{r.Type.Short()}, put...)
	for _, name := range gone {
		line = append(line, "-"+name)
	}
	c.log = append(c.log, strings.Join(line, " "))
}

// Hold makes the client answer no response with clusters, as if they warmed, until Release.
func (c *Client) Hold() { c.hold(true) }

// Release ends Hold.
func (c *Client) Release() { c.hold(false) }

func (c *Client) hold(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.envoy.Hold(on)
}

// Pause stops reading. One more response may already have been read.
func (c *Client) Pause() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.paused = make(chan struct{})
}

// Resume continues reading.
func (c *Client) Resume() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.paused != nil {
		close(c.paused)
		c.paused = nil
	}
}

// Received returns the number of responses so far.
func (c *Client) Received() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

// Refuse makes the client refuse all versions of a resource from now on. An empty reason ends that.
func (c *Client) Refuse(t resource.Type, name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[resource.Name{Type: t, Name: name}] = reason
}

// until waits until holds returns true. It calls holds under mu.
func (c *Client) until(what string, holds func() bool) {
	c.t.Helper()
	deadline := time.NewTimer(patience)
	defer deadline.Stop()
	for {
		c.mu.Lock()
		done, next, err := holds(), c.changed, c.err
		c.mu.Unlock()
		if done {
			return
		}
		if err != nil {
			c.t.Fatalf("%v: no %s; the stream ended: %v", c, what, err)
		}
		select {
		case <-next:
		case <-deadline.C:
			c.mu.Lock()
			defer c.mu.Unlock()
			c.t.Fatalf("%v: no %s within %s; log %q", c, what, patience, c.log)
		}
	}
}
