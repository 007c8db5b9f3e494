package schedule

import (
	"context"
	"io"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds"
)

// Number of unread responses and requests that a stream buffers: a proxy that does not read soon blocks
// Send.
const (
	downBuffer = 2
	upBuffer   = 16
)

// pipe is one stream, without a network.
type pipe struct {
	node     string
	ctx      context.Context //nolint:containedctx // grpc.ServerStream has one
	cancel   context.CancelFunc
	up       chan *envoysim.Request
	down     chan *envoysim.Response
	vanished chan struct{} // closed when the client has vanished and the server does not know
	decoder  *envoysim.Decoder
	wrong    func(format string, args ...any)
}

func (s *simulation) newPipe(ctx context.Context, node string) *pipe {
	p := &pipe{
		node: node, up: make(chan *envoysim.Request, upBuffer), down: make(chan *envoysim.Response, downBuffer),
		vanished: make(chan struct{}), decoder: s.decoder, wrong: s.Wrong,
	}
	p.ctx, p.cancel = context.WithCancel(ctx)
	return p
}

func (p *pipe) send(r *envoysim.Request) {
	select {
	case p.up <- r:
	case <-p.ctx.Done():
	}
}

func (p *pipe) receive() (*envoysim.Request, error) {
	select {
	case r := <-p.up:
		return r, nil
	case <-p.ctx.Done():
		return nil, p.ctx.Err()
	}
}

// deliver blocks while the client does not read. The server must time out.
func (p *pipe) deliver(r *envoysim.Response, err error) error {
	if err != nil {
		p.wrong("%s is sent what cannot be decoded: %v", p.node, err)
		return err
	}
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

// RecvMsg encodes the proxy's message for the server's codec.
func (e deltaEnd) RecvMsg(m any) error {
	r, err := e.receive()
	if err != nil {
		return err
	}
	return receiveAs(r.Delta(), m)
}

func (e deltaEnd) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	r := &discoveryv3.DeltaDiscoveryRequest{}
	return r, e.RecvMsg(r)
}

// SendMsg decodes the server's message.
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
	return e.deliver(e.decoder.Delta(r))
}

// RecvMsg encodes the proxy's message for the server's codec.
func (e sotwEnd) RecvMsg(m any) error {
	r, err := e.receive()
	if err != nil {
		return err
	}
	return receiveAs(r.SotW(), m)
}

func (e sotwEnd) Recv() (*discoveryv3.DiscoveryRequest, error) {
	r := &discoveryv3.DiscoveryRequest{}
	return r, e.RecvMsg(r)
}

// receiveAs passes a request through the server's codec.
func receiveAs(request proto.Message, m any) error {
	data, err := xds.Codec().Marshal(request)
	if err != nil {
		return err
	}
	return xds.Codec().Unmarshal(data, m)
}

func (e sotwEnd) Send(r *discoveryv3.DiscoveryResponse) error { return e.deliver(e.decoder.SotW(r)) }
