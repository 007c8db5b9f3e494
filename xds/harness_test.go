package xds

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// soon is how long a test waits for what must happen, quiet how long it checks that something does not happen.
const (
	soon  = 10 * time.Second
	quiet = 50 * time.Millisecond
)

// fakeSource is a Source without a mesh.
type fakeSource struct {
	mu       sync.Mutex
	desired  map[string]resource.Desired
	attached map[string]int
	calls    []string
	attach   func(id string) // called before Attach returns
}

func (f *fakeSource) Attach(id string) resource.Desired {
	f.mu.Lock()
	d := f.desired[id]
	f.attached[id]++
	f.calls = append(f.calls, "attach "+id)
	f.mu.Unlock()
	if f.attach != nil {
		f.attach(id)
	}
	return d
}

func (f *fakeSource) Detach(id string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.attached[id] = 0
	f.calls = append(f.calls, "detach "+id)
}

func (f *fakeSource) called() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return strings.Join(f.calls, ", ")
}

// world is a server, and a connection to it in memory.
type world struct {
	t       *testing.T
	server  *Server
	source  *fakeSource
	metrics *prometheus.Registry
	log     *lockedBuffer
	conn    *grpc.ClientConn
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func newWorld(t *testing.T, o Options) *world {
	t.Helper()
	w := &world{
		t: t, metrics: prometheus.NewRegistry(), log: &lockedBuffer{},
		source: &fakeSource{desired: map[string]resource.Desired{}, attached: map[string]int{}},
	}
	o.Registerer, o.Logger = w.metrics, slog.New(slog.NewTextHandler(w.log, nil))
	w.server = NewServer(o, w.source, func(_ context.Context, id string) error {
		switch {
		case strings.HasPrefix(id, "stranger"):
			return errors.New("the certificate is of another proxy")
		case strings.HasPrefix(id, "expired"):
			return status.Error(codes.Unauthenticated, "the certificate has expired")
		}
		return nil
	})
	listener := bufconn.Listen(1 << 16)
	g := grpc.NewServer(ServerOptions()...)
	w.server.Register(g)
	served := make(chan error, 1)
	go func() { served <- g.Serve(listener) }()
	conn, err := grpc.NewClient("passthrough:///x", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithInitialWindowSize(1<<16), // without it the window grows if the client reads fast
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	w.conn = conn
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
		g.Stop()
		if err := <-served; err != nil {
			t.Error(err)
		}
		w.server.Wait()
	})
	return w
}

// want sets what a node should have, in the language of scripts, and publishes it.
func (w *world) want(node, text string) {
	w.t.Helper()
	w.source.mu.Lock()
	d := resource.Desired{Shared: setOf(w.t, text, w.source.desired[node].Shared)}
	w.source.desired[node] = d
	w.source.mu.Unlock()
	w.server.Publish(map[string]resource.Desired{node: d})
}

func (w *world) metric(name string) float64 {
	w.t.Helper()
	families, err := w.metrics.Gather()
	if err != nil {
		w.t.Fatal(err)
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// until waits for something that another goroutine does.
func (w *world) until(what string, done func() bool) {
	w.t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(soon)
	for !done() {
		select {
		case <-tick.C:
		case <-deadline:
			w.t.Fatalf("not in time: %s", what)
		}
	}
}

// proxy is the client's end of a stream. It does not read responses before listen is called.
type proxy[Req, Resp any] struct {
	w         *world
	stream    grpc.BidiStreamingClient[Req, Resp]
	responses chan *Resp
	ended     chan error
	end       context.CancelFunc
}

func (w *world) delta() *proxy[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse] {
	w.t.Helper()
	return connect(w, discoveryv3.NewAggregatedDiscoveryServiceClient(w.conn).DeltaAggregatedResources)
}

func (w *world) sotw() *proxy[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse] {
	w.t.Helper()
	return connect(w, discoveryv3.NewAggregatedDiscoveryServiceClient(w.conn).StreamAggregatedResources)
}

func connect[Req, Resp any](w *world, open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Req, Resp], error)) *proxy[Req, Resp] {
	w.t.Helper()
	ctx, cancel := context.WithCancel(w.t.Context())
	stream, err := open(ctx)
	if err != nil {
		cancel()
		w.t.Fatal(err)
	}
	p := &proxy[Req, Resp]{w: w, stream: stream, responses: make(chan *Resp), ended: make(chan error, 1), end: cancel}
	w.t.Cleanup(cancel)
	return p
}

// listen starts to read responses, until the stream ends.
func (p *proxy[Req, Resp]) listen() *proxy[Req, Resp] {
	go func() {
		for {
			r, err := p.stream.Recv()
			if err != nil {
				p.ended <- err
				return
			}
			select {
			case p.responses <- r:
			case <-p.stream.Context().Done():
			}
		}
	}()
	return p
}

func (p *proxy[Req, Resp]) send(r *Req) {
	p.w.t.Helper()
	if err := p.stream.Send(r); err != nil {
		p.w.t.Fatal(err)
	}
}

func (p *proxy[Req, Resp]) next() *Resp {
	p.w.t.Helper()
	select {
	case r := <-p.responses:
		return r
	case err := <-p.ended:
		p.w.t.Fatalf("the stream has ended: %v", err)
	case <-time.After(soon):
		p.w.t.Fatal("no response")
	}
	return nil
}

func (p *proxy[Req, Resp]) quiet() {
	p.w.t.Helper()
	select {
	case r := <-p.responses:
		p.w.t.Fatalf("unexpected response: %v", r)
	case err := <-p.ended:
		p.w.t.Fatalf("the stream has ended: %v", err)
	case <-time.After(quiet):
	}
}

// endsWith waits for the end of the stream, and checks its error.
func (p *proxy[Req, Resp]) endsWith(code codes.Code, text string) {
	p.w.t.Helper()
	for {
		select {
		case <-p.responses:
		case err := <-p.ended:
			if status.Code(err) != code || !strings.Contains(err.Error(), text) {
				p.w.t.Fatalf("the stream ended with %v, want %v with %q", err, code, text)
			}
			return
		case <-time.After(soon):
			p.w.t.Fatal("the stream does not end")
		}
	}
}

func nodeOf(id string) *corev3.Node { return &corev3.Node{Id: id} }

func ask(id, kind string, names ...string) *discoveryv3.DeltaDiscoveryRequest {
	r := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(shortTypes[kind]), ResourceNamesSubscribe: names}
	if id != "" {
		r.Node = nodeOf(id)
	}
	return r
}

func ack(r *discoveryv3.DeltaDiscoveryResponse, nack string) *discoveryv3.DeltaDiscoveryRequest {
	a := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	if nack != "" {
		a.ErrorDetail = &statuspb.Status{Code: 13, Message: nack}
	}
	return a
}

// said describes a response in the language of scripts.
func said(r *discoveryv3.DeltaDiscoveryResponse) string {
	words := []string{shortOf(resource.Type(r.GetTypeUrl()))}
	for _, x := range r.GetResources() {
		words = append(words, x.GetName()+"@"+x.GetVersion())
	}
	for _, n := range r.GetRemovedResources() {
		words = append(words, "-"+n)
	}
	return strings.Join(words, " ")
}

func saidSotw(r *discoveryv3.DiscoveryResponse) string {
	words := []string{shortOf(resource.Type(r.GetTypeUrl()))}
	for _, x := range r.GetResources() {
		words = append(words, string(x.GetValue()))
	}
	return strings.Join(slices.Clip(words), " ")
}

func expect[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}
