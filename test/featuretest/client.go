package featuretest

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Client is one proxy. Like Envoy, it subscribes to all clusters and listeners, and to the endpoints and routes that they
// name. It answers each response, and withholds the ACK of clusters until their endpoints have come. A manual client (see
// Dial) only does what the test says.
type Client struct {
	t        *testing.T
	f        *Feature
	id       mesh.ID
	protocol Protocol
	manual   bool

	conn   *grpc.ClientConn
	cancel context.CancelFunc
	reader sync.WaitGroup
	paused chan struct{} // nil while it reads

	mu       sync.Mutex
	changed  chan struct{} // closed at the next event
	wire     Wire
	err      error // the end of the stream
	begun    map[resource.Type]bool
	names    map[resource.Type]map[string]bool // subscriptions by name
	has      map[resource.Name]Item
	acked    map[resource.Name]string // versions, as initial_resource_versions name them
	nonce    map[resource.Type]string
	version  map[resource.Type]string // SotW: the last that was ACKed
	refuse   map[resource.Name]string // why
	warming  map[string]bool
	withheld *Response // of clusters, until they are warm
	log      []string
	inbox    []*Response // of a manual client: not yet taken by Next
	received int
	markers  map[string]bool
	marked   int
}

// Connect connects a proxy of mesh default, or of another mesh as <mesh>/<name>.
func (f *Feature) Connect(proxy string, p Protocol) *Client {
	f.t.Helper()
	c := f.client(proxy, p)
	c.open(c.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hello()
	return c
}

// Dial is Connect for a manual client, which has sent nothing yet.
func (f *Feature) Dial(proxy string, p Protocol) *Client {
	f.t.Helper()
	c := f.client(proxy, p)
	c.manual = true
	c.open(c.id)
	return c
}

// DialAs is Dial with the certificate of another proxy, or without one if owner is empty.
func (f *Feature) DialAs(owner string, p Protocol) *Client {
	f.t.Helper()
	c := f.client("", p)
	c.manual = true
	c.open(owner)
	return c
}

func (f *Feature) client(proxy string, p Protocol) *Client {
	f.t.Helper()
	if !strings.Contains(proxy, "/") {
		proxy = mesh.MakeID(mesh.DefaultMesh, proxy)
	}
	c := &Client{
		t: f.t, f: f, id: proxy, protocol: p,
		changed: make(chan struct{}), has: map[resource.Name]Item{}, acked: map[resource.Name]string{},
		refuse: map[resource.Name]string{}, names: map[resource.Type]map[string]bool{},
	}
	for _, t := range resource.Types() {
		c.names[t] = map[string]bool{}
	}
	f.t.Cleanup(c.Close)
	return c
}

// open opens a connection and a stream with the certificate of owner, or without one if owner is empty.
func (c *Client) open(owner mesh.ID) {
	c.t.Helper()
	conn, err := c.f.dial(owner)
	if err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.t.Context()))
	c.conn, c.cancel = conn, cancel
	w, err := OpenWire(ctx, c.protocol, conn)
	if err != nil {
		c.t.Fatalf("open stream of %s: %v", c.id, err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wire, c.err, c.withheld = w, nil, nil
	c.begun, c.nonce, c.version = map[resource.Type]bool{}, map[resource.Type]string{}, map[resource.Type]string{}
	c.warming, c.markers = map[string]bool{}, map[string]bool{}
	c.reader.Go(func() { c.read(w) })
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
	c.open(c.id)
	c.mu.Lock()
	defer c.mu.Unlock()
	c.log = nil
	c.hello()
}

// hello sends Envoy's first requests. After a reconnect they name what it has, and the endpoints and routes that it needs.
func (c *Client) hello() {
	c.request(&Request{Type: resource.Cluster, Node: c.id, Versions: c.versions(resource.Cluster)})
	if names := sorted(c.names[resource.Endpoint]); len(names) > 0 {
		c.request(&Request{Type: resource.Endpoint, Add: names, Versions: c.versions(resource.Endpoint)})
	}
	c.request(&Request{Type: resource.Listener, Versions: c.versions(resource.Listener)})
	if names := sorted(c.names[resource.Route]); len(names) > 0 {
		c.request(&Request{Type: resource.Route, Add: names, Versions: c.versions(resource.Route)})
	}
}

func (c *Client) versions(t resource.Type) map[string]string {
	versions := map[string]string{}
	for n, v := range c.acked {
		if n.Type == t {
			versions[n.Name] = v
		}
	}
	return versions
}

// request sends a request and updates the subscriptions. It needs mu.
func (c *Client) request(r *Request) {
	for _, name := range r.Add {
		c.names[r.Type][name] = true
	}
	for _, name := range r.Remove {
		delete(c.names[r.Type], name)
		if !wild(r.Type) {
			delete(c.has, resource.Name{Type: r.Type, Name: name})
			delete(c.acked, resource.Name{Type: r.Type, Name: name})
		}
	}
	if c.protocol == SotW {
		if r.Names == nil {
			r.Names = sorted(c.names[r.Type])
		}
		r.Version = c.version[r.Type]
		if r.Nonce == "" {
			r.Nonce = c.nonce[r.Type]
		}
	}
	c.begun[r.Type] = true
	_ = c.wire.Send(r) // the reader learns why the stream has ended
}

// Send sends a request as it is. Other clients than manual ones go on with their own requests.
func (c *Client) Send(r *Request) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.request(r)
}

// Ack accepts a response of a manual client.
func (c *Client) Ack(r *Response) { c.answer(r, "") }

// Nack refuses a response of a manual client.
func (c *Client) Nack(r *Response, reason string) { c.answer(r, reason) }

func (c *Client) answer(r *Response, refusal string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note(r, refusal)
	c.reply(r, refusal)
}

// Next returns the next response that a manual client got.
func (c *Client) Next() *Response {
	c.t.Helper()
	var r *Response
	c.until("a response", func() bool {
		if len(c.inbox) == 0 {
			return false
		}
		r, c.inbox, c.log = c.inbox[0], c.inbox[1:], c.log[1:]
		return true
	})
	return r
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
	delete(c.refuse, resource.Name{Type: t, Name: name})
	if reason != "" {
		c.refuse[resource.Name{Type: t, Name: name}] = reason
	}
}

// Ended waits for the end of the stream and returns its error.
func (c *Client) Ended() error {
	c.t.Helper()
	var err error
	c.until("the end of the stream", func() bool {
		err = c.err
		return err != nil
	})
	return err
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

func wild(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

func sorted(set map[string]bool) []string { return slices.Sorted(maps.Keys(set)) }
