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
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// latency is how long a response takes to arrive. The server has sent all that it can before a client answers.
const latency = time.Millisecond

// drainTime is Envoy's default. No listener of a test drains for that long.
const drainTime = 10 * time.Minute

// Client is one proxy: a simulated Envoy, its connection, and a log of the responses to it.
type Client struct {
	t  *testing.T
	f  *Feature
	id mesh.ID

	conn   *grpc.ClientConn
	cancel context.CancelFunc
	reader sync.WaitGroup

	mu       sync.Mutex
	envoy    *envoysim.Envoy
	err      error // why the stream ended
	refuse   map[resource.Name]string
	log      []string
	received int
}

// Connect connects a proxy of mesh default, or of another mesh as <mesh>/<name>.
func (f *Feature) Connect(proxy string, p envoysim.Protocol) *Client {
	f.t.Helper()
	if !strings.Contains(proxy, "/") {
		proxy = mesh.MakeID(mesh.DefaultMesh, proxy)
	}
	c := &Client{
		t: f.t, f: f, id: proxy, refuse: map[resource.Name]string{},
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
	c.envoy.Connect(func(r *envoysim.Request) { _ = w.Send(r) }) // the reader gets the error that ended the stream
}

// Close ends the stream and its connection. The client keeps its resources.
func (c *Client) Close() {
	if c.cancel == nil {
		return
	}
	c.cancel()
	_ = c.conn.Close() // nothing more will be sent
	c.reader.Wait()
	c.cancel = nil
}

// Reconnect opens a new stream on a new connection. Like Envoy, the client names the resources that it has. The log is
// cleared.
func (c *Client) Reconnect() {
	c.t.Helper()
	c.Close()
	c.log = nil
	c.open()
}

// Restart restarts the Envoy with a bootstrap that says whether its agent takes records of plain text. The log is
// cleared.
func (c *Client) Restart(records bool) {
	c.t.Helper()
	c.Close()
	c.log = nil
	c.envoy = envoysim.New(envoysim.Options{
		Node: c.id, Protocol: c.envoy.Protocol, DrainTime: drainTime, Records: records,
	})
	c.open()
}

// read reads responses until the stream ends.
func (c *Client) read(w envoysim.Wire) {
	for {
		r, err := w.Recv()
		time.Sleep(latency)
		c.mu.Lock()
		if err != nil {
			c.err = err
		} else {
			c.note(r)
			c.envoy.Take(r, envoysim.Refusals{Reason: func(p *envoysim.Resource) string { return c.refuse[p.Key] }})
		}
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// note writes a response into the log. A state-of-the-world list is logged as its changes. The caller holds mu.
func (c *Client) note(r *envoysim.Response) {
	put := r.Names()
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
	for _, name := range c.envoy.Gone(r) {
		line = append(line, "-"+name)
	}
	c.log = append(c.log, strings.Join(line, " "))
}

// Hold stops the client from answering responses with clusters, as if they were warming, until Release.
func (c *Client) Hold() { c.hold(true) }

// Release ends Hold.
func (c *Client) Release() { c.hold(false) }

func (c *Client) hold(on bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.envoy.Hold(on)
}

// responses returns the number of responses so far.
func (c *Client) responses() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.received
}

// Refuse makes the client refuse all versions of a resource from now on. An empty reason makes it accept them again.
func (c *Client) Refuse(t resource.Type, name, reason string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.refuse[resource.Name{Type: t, Name: name}] = reason
}

// alive fails the test if the stream has ended.
func (c *Client) alive() {
	c.t.Helper()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		c.t.Fatalf("%v: stream ended: %v", c, c.err)
	}
}
