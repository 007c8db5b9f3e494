package xds

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/internal/testing/grpctest"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// fakeSource is a Source without a mesh.
type fakeSource struct {
	mu       sync.Mutex
	desired  map[string]resource.Desired
	attached map[string]int
	says     map[string]resource.Metadata // metadata of the newest stream
	calls    []string
	attach   func(id string) // called before Attach returns
}

func (f *fakeSource) Attach(id string, says resource.Metadata) resource.Desired {
	f.mu.Lock()
	d := f.desired[id]
	d.For = says
	f.says[id] = says
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

// fixture is a server in a bubble, and a connection to it in memory. It checks conditions when all goroutines wait, so
// that no time passes.
type fixture struct {
	t       *testing.T
	server  *Server
	source  *fakeSource
	metrics *prometheus.Registry
	log     *logtest.Buffer
	conn    *grpc.ClientConn
}

func newFixture(t *testing.T, o Options) *fixture {
	t.Helper()
	f := &fixture{
		t: t, metrics: prometheus.NewRegistry(), log: &logtest.Buffer{},
		source: &fakeSource{desired: map[string]resource.Desired{}, attached: map[string]int{}, says: map[string]resource.Metadata{}},
	}
	o.Registerer, o.Logger = f.metrics, slog.New(slog.NewTextHandler(f.log, nil))
	f.server = NewServer(o, f.source, func(_ context.Context, id string) error {
		switch {
		case strings.HasPrefix(id, "stranger"):
			return errors.New("the certificate belongs to another proxy")
		case strings.HasPrefix(id, "expired"):
			return status.Error(codes.Unauthenticated, "the certificate has expired")
		}
		return nil
	})
	g := grpc.NewServer(ServerOptions()...)
	f.server.Register(g)
	t.Cleanup(f.server.Wait)
	f.conn = grpctest.Connect(t, g, grpc.WithInitialWindowSize(1<<16)) // a fixed window
	return f
}

// want sets the desired resources of a node, in the language of scripts, and publishes them.
func (f *fixture) want(node, text string) {
	f.t.Helper()
	f.source.mu.Lock()
	d := resource.Desired{Shared: setOf(f.t, text, f.source.desired[node].Shared), For: f.source.says[node]}
	f.source.desired[node] = d
	f.source.mu.Unlock()
	f.server.Publish(map[string]resource.Desired{node: d})
}

func (f *fixture) metric(name string) float64 {
	f.t.Helper()
	families, err := f.metrics.Gather()
	if err != nil {
		f.t.Fatal(err)
	}
	sum := 0.0
	for _, family := range families {
		if family.GetName() == name {
			for _, m := range family.GetMetric() {
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// settles checks a condition when all goroutines wait.
func (f *fixture) settles(what string, holds func() bool) {
	f.t.Helper()
	synctest.Wait()
	if !holds() {
		f.t.Fatalf("condition does not hold: %s", what)
	}
}

// fakeProxy is the proxy's end of a stream. It reads no responses before listen is called.
type fakeProxy[Req, Resp any] struct {
	f         *fixture
	stream    grpc.BidiStreamingClient[Req, Resp]
	responses chan *Resp
	ended     chan error
	end       context.CancelFunc
}

func (f *fixture) delta() *fakeProxy[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse] {
	f.t.Helper()
	return connect(f, discoveryv3.NewAggregatedDiscoveryServiceClient(f.conn).DeltaAggregatedResources)
}

func (f *fixture) sotw() *fakeProxy[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse] {
	f.t.Helper()
	return connect(f, discoveryv3.NewAggregatedDiscoveryServiceClient(f.conn).StreamAggregatedResources)
}

func connect[Req, Resp any](f *fixture, open func(context.Context, ...grpc.CallOption) (grpc.BidiStreamingClient[Req, Resp], error)) *fakeProxy[Req, Resp] {
	f.t.Helper()
	ctx, cancel := context.WithCancel(f.t.Context())
	stream, err := open(ctx)
	if err != nil {
		cancel()
		f.t.Fatal(err)
	}
	p := &fakeProxy[Req, Resp]{f: f, stream: stream, responses: make(chan *Resp), ended: make(chan error, 1), end: cancel}
	f.t.Cleanup(cancel)
	return p
}

// listen starts to read responses, until the stream ends.
func (p *fakeProxy[Req, Resp]) listen() *fakeProxy[Req, Resp] {
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

func (p *fakeProxy[Req, Resp]) send(r *Req) {
	p.f.t.Helper()
	if err := p.stream.Send(r); err != nil {
		p.f.t.Fatal(err)
	}
}

// next returns the response that the server has sent.
func (p *fakeProxy[Req, Resp]) next() *Resp {
	p.f.t.Helper()
	synctest.Wait()
	select {
	case r := <-p.responses:
		return r
	case err := <-p.ended:
		p.f.t.Fatalf("the stream has ended: %v", err)
	default:
		p.f.t.Fatal("no response")
	}
	return nil
}

// quiet checks that the server has sent no further response.
func (p *fakeProxy[Req, Resp]) quiet() {
	p.f.t.Helper()
	synctest.Wait()
	select {
	case r := <-p.responses:
		p.f.t.Fatalf("unexpected response: %v", r)
	case err := <-p.ended:
		p.f.t.Fatalf("the stream has ended: %v", err)
	default:
	}
}

// endsWith checks the error with which the stream has ended. It ignores earlier responses.
func (p *fakeProxy[Req, Resp]) endsWith(code codes.Code, text string) {
	p.f.t.Helper()
	for {
		synctest.Wait()
		select {
		case <-p.responses:
		case err := <-p.ended:
			if status.Code(err) != code || !strings.Contains(err.Error(), text) {
				p.f.t.Fatalf("the stream ended with %v, want %v with %q", err, code, text)
			}
			return
		default:
			p.f.t.Fatal("the stream has not ended")
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

// said formats a response in the language of scripts.
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
		text, _, _ := strings.Cut(string(x.GetValue()), " ")
		words = append(words, text)
	}
	return strings.Join(slices.Clip(words), " ")
}

func expect[T comparable](t *testing.T, got, want T) {
	t.Helper()
	if got != want {
		t.Fatalf("got %v, want %v", got, want)
	}
}
