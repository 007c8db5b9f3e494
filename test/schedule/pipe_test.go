package schedule

import (
	"context"
	"io"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// Number of unread responses and requests that a stream holds: a proxy that does not read soon blocks Send.
const (
	downBuffer = 2
	upBuffer   = 16
)

// request is a client's request in either protocol.
type request struct {
	kind           resource.Type
	nonce, refusal string
	// Delta: subscription changes, and in the first request of a stream what the client has.
	add, remove []string
	versions    map[string]string
	// State of the world: all names.
	names []string
}

// response is a response in either protocol.
type response struct {
	kind   resource.Type
	nonce  string
	things []*thing
	gone   []string
}

// pipe is one stream, without a network.
type pipe struct {
	node   string
	ctx    context.Context //nolint:containedctx // grpc.ServerStream has one
	cancel context.CancelFunc
	up     chan *request
	down   chan *response
	left   chan struct{} // closed when the client is gone and the server does not know
	books  *library
	wrong  func(format string, args ...any)
	met    bool // the server's receiver knows the node
}

func (w *world) newPipe(ctx context.Context, node string) *pipe {
	p := &pipe{
		node: node, up: make(chan *request, upBuffer), down: make(chan *response, downBuffer), left: make(chan struct{}),
		books: w.books, wrong: w.wrong,
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

func (p *pipe) send(r *request) {
	select {
	case p.up <- r:
	case <-p.ctx.Done():
	}
}

func (p *pipe) receive() (*request, error) {
	select {
	case r := <-p.up:
		return r, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

// give blocks while the client does not read. The server must not accept that for longer than its timeout.
func (p *pipe) give(r *response) error {
	begun := time.Now()
	defer func() {
		if d := time.Since(begun); d > sendTimeout {
			p.wrong("the server has waited %s for %s to read", d, p.node)
		}
	}()
	select {
	case p.down <- r:
		return nil
	case <-p.ctx.Done():
		return io.EOF
	}
}

// introduction returns the node, but only for the first request of a stream.
func (p *pipe) introduction() *corev3.Node {
	if p.met {
		return nil
	}
	p.met = true
	return &corev3.Node{Id: p.node}
}

func (r *request) detail() *statuspb.Status {
	if r.refusal == "" {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.Internal), Message: r.refusal}
}

// deltaEnd and sotwEnd are the server's side of a pipe.
type deltaEnd struct {
	grpc.ServerStream
	*pipe
}

type sotwEnd struct {
	grpc.ServerStream
	*pipe
}

var (
	_ grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse] = deltaEnd{}
	_ grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]           = sotwEnd{}
)

func (e deltaEnd) Context() context.Context { return e.ctx }
func (e sotwEnd) Context() context.Context  { return e.ctx }

func (e deltaEnd) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	r, err := e.receive()
	if err != nil {
		return nil, err
	}
	return &discoveryv3.DeltaDiscoveryRequest{
		Node: e.introduction(), TypeUrl: string(r.kind), ResponseNonce: r.nonce, ErrorDetail: r.detail(),
		ResourceNamesSubscribe: r.add, ResourceNamesUnsubscribe: r.remove, InitialResourceVersions: r.versions,
	}, nil
}

// SendMsg decodes what the server has encoded for its codec.
func (e deltaEnd) SendMsg(m any) error {
	data, err := xds.Codec().Marshal(m)
	if err != nil {
		return err
	}
	r := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(data.Materialize(), r); err != nil {
		return err
	}
	return e.Send(r)
}

func (e deltaEnd) Send(r *discoveryv3.DeltaDiscoveryResponse) error {
	m := &response{kind: resource.Type(r.GetTypeUrl()), nonce: r.GetNonce(), gone: append([]string(nil), r.GetRemovedResources()...)}
	for _, one := range r.GetResources() {
		m.things = append(m.things, e.books.look(one.GetResource(), one.GetName(), one.GetVersion()))
	}
	return e.give(m)
}

func (e sotwEnd) Recv() (*discoveryv3.DiscoveryRequest, error) {
	r, err := e.receive()
	if err != nil {
		return nil, err
	}
	return &discoveryv3.DiscoveryRequest{
		Node: e.introduction(), TypeUrl: string(r.kind), ResponseNonce: r.nonce, ErrorDetail: r.detail(), ResourceNames: r.names,
	}, nil
}

func (e sotwEnd) Send(r *discoveryv3.DiscoveryResponse) error {
	m := &response{kind: resource.Type(r.GetTypeUrl()), nonce: r.GetNonce()}
	for _, body := range r.GetResources() {
		m.things = append(m.things, e.books.look(body, "", ""))
	}
	return e.give(m)
}
