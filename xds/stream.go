package xds

import (
	"context"
	"errors"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// stream is one connected proxy.
type stream struct {
	node      string
	connected time.Time
	slot      atomic.Pointer[resource.Desired] // what the proxy should have, nil before Attach
	wake      chan struct{}                    // holds one: the slot has something new
	ended     chan error                       // holds one: why the server ends the stream

	mu     sync.Mutex // never held while something is sent
	client *client
}

func newStream(id string, sotw bool) *stream {
	return &stream{
		node: id, connected: time.Now(), client: newClient(sotw),
		wake: make(chan struct{}, 1), ended: make(chan error, 1),
	}
}

func (st *stream) poke() {
	select {
	case st.wake <- struct{}{}:
	default:
	}
}

func (st *stream) end(err error) {
	select {
	case st.ended <- err:
	default:
	}
}

func (st *stream) late(after time.Duration) bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	since := st.client.unanswered()
	return !since.IsZero() && time.Since(since) > after
}

func (st *stream) status(ackTimeout time.Duration) ProxyStatus {
	late := st.late(ackTimeout)
	st.mu.Lock()
	defer st.mu.Unlock()
	return ProxyStatus{
		Node: st.node, Delta: !st.client.sotw, Connected: st.connected,
		Known: st.client.desired.Known(), Late: late, Types: st.client.status(),
	}
}

// request is what both protocols ask.
type request interface {
	GetNode() *corev3.Node
	GetTypeUrl() string
}

// protocol is one of the two, over its stream.
type protocol[Req request, Resp any] struct {
	sotw    bool
	recv    func() (Req, error)
	send    func(Resp) error
	receive func(*client, Req) ([]NACK, error)
	encode  func(*reply) Resp
}

// DeltaAggregatedResources serves the delta protocol.
func (s *Server) DeltaAggregatedResources(g grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	return serve(g.Context(), s, protocol[*discoveryv3.DeltaDiscoveryRequest, *discoveryv3.DeltaDiscoveryResponse]{
		recv: g.Recv, send: g.Send, receive: (*client).receiveDelta, encode: (*reply).delta,
	})
}

// StreamAggregatedResources serves the state of the world.
func (s *Server) StreamAggregatedResources(g grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	return serve(g.Context(), s, protocol[*discoveryv3.DiscoveryRequest, *discoveryv3.DiscoveryResponse]{
		sotw: true, recv: g.Recv, send: g.Send, receive: (*client).receiveSotw, encode: (*reply).state,
	})
}

// serve runs one stream to its end. One goroutine receives and one sends; both may block in gRPC for as long as the
// stream lives, so this one, which must be able to end it, does neither. They end right after it returned.
func serve[Req request, Resp any](ctx context.Context, s *Server, p protocol[Req, Resp]) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	requests, broken := make(chan Req), make(chan error, 2)
	s.running.Go(func() {
		broken <- forward(ctx, p.recv, requests)
	})

	first, err := await(ctx, requests, broken, s.o.FirstMessage)
	if err != nil {
		return end(err)
	}
	id := first.GetNode().GetId()
	if err := s.admit(ctx, id); err != nil {
		s.metrics.rejected.Inc()
		s.o.Logger.WarnContext(ctx, "stream refused", "node", cut(id), "err", err)
		return err
	}

	st := newStream(id, p.sotw)
	log := s.o.Logger.With("node", id)
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	log.InfoContext(ctx, "proxy connected", "delta", !p.sotw)
	s.attach(id, st)
	defer s.detach(id, st)

	replies, sent := make(chan *reply), make(chan struct{}, 1)
	s.running.Go(func() {
		if err := transmit(ctx, p, replies, sent); err != nil {
			broken <- err
		}
	})
	l := &loop[Req]{s: s, st: st, log: log, receive: p.receive}
	if err = l.take(ctx, first); err == nil {
		err = l.run(ctx, requests, replies, sent, broken)
	}
	log.InfoContext(ctx, "proxy disconnected", "err", err)
	return end(err)
}

// end is what the peer is told: nothing, if it ended the stream itself.
func end(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// forward hands on what is received, until there is no more.
func forward[Req any](ctx context.Context, recv func() (Req, error), to chan<- Req) error {
	for {
		r, err := recv()
		if err != nil {
			return err
		}
		select {
		case to <- r:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// transmit sends, and says so after each.
func transmit[Req request, Resp any](ctx context.Context, p protocol[Req, Resp], replies <-chan *reply, sent chan<- struct{}) error {
	for {
		select {
		case r := <-replies:
			if err := p.send(p.encode(r)); err != nil {
				return err
			}
			sent <- struct{}{} // holds one, and the loop sends the next only after it took this one
		case <-ctx.Done():
			return nil
		}
	}
}

func await[Req any](ctx context.Context, requests <-chan Req, broken <-chan error, atMost time.Duration) (Req, error) {
	var none Req
	timer := time.NewTimer(atMost)
	defer timer.Stop()
	select {
	case r := <-requests:
		return r, nil
	case err := <-broken:
		return none, err
	case <-ctx.Done():
		return none, status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		return none, status.Errorf(codes.DeadlineExceeded, "no request within %s", atMost)
	}
}

// admit checks who the first message claims to be.
func (s *Server) admit(ctx context.Context, id string) error {
	switch {
	case id == "":
		return status.Error(codes.InvalidArgument, "the first request of a stream must have node.id")
	case len(id) > maxNameLength:
		return status.Errorf(codes.InvalidArgument, "node.id has %d bytes, more than %d", len(id), maxNameLength)
	}
	err := s.authorize(ctx, id)
	if err == nil {
		return nil
	}
	if st, ok := status.FromError(err); ok {
		return st.Err()
	}
	return status.Error(codes.PermissionDenied, err.Error())
}

// loop is the owner of a stream's client.
type loop[Req request] struct {
	s       *Server
	st      *stream
	log     *slog.Logger
	receive func(*client, Req) ([]NACK, error)
}

// run drives the client. At most one reply is with the sender; what changes meanwhile gathers in the client, and a
// sender that does not get rid of it ends the stream.
func (l *loop[Req]) run(ctx context.Context, requests <-chan Req, replies chan<- *reply, sent <-chan struct{}, broken <-chan error) error {
	stalled := time.NewTimer(l.s.o.SendTimeout)
	stalled.Stop()
	busy := false
	for {
		if !busy {
			if r := l.next(); r != nil {
				select {
				case replies <- r: // the sender is idle
				case <-ctx.Done():
					return status.FromContextError(ctx.Err()).Err()
				}
				busy = true
				stalled.Reset(l.s.o.SendTimeout)
			}
		}
		select {
		case <-ctx.Done():
			return status.FromContextError(ctx.Err()).Err()
		case err := <-broken:
			return err
		case err := <-l.st.ended:
			return err
		case r := <-requests:
			if err := l.take(ctx, r); err != nil {
				return err
			}
		case <-l.st.wake:
			l.want()
		case <-sent:
			busy = false
			stalled.Stop()
		case <-stalled.C:
			return status.Errorf(codes.DeadlineExceeded, "the proxy has not read for %s", l.s.o.SendTimeout)
		}
	}
}

func (l *loop[Req]) want() {
	l.st.mu.Lock()
	defer l.st.mu.Unlock()
	l.st.client.want(*l.st.slot.Load())
}

func (l *loop[Req]) next() *reply {
	l.st.mu.Lock()
	defer l.st.mu.Unlock()
	r := l.st.client.next()
	if r != nil {
		l.s.metrics.responses.WithLabelValues(r.topic.kind.Short()).Inc()
		l.s.metrics.resources.WithLabelValues(r.topic.kind.Short()).Add(float64(max(len(r.puts), len(r.full))))
	}
	return r
}

// take gives one request to the client, and reports what it refuses.
func (l *loop[Req]) take(ctx context.Context, r Req) error {
	if id := r.GetNode().GetId(); id != "" && id != l.st.node {
		return status.Errorf(codes.PermissionDenied, "the stream is of node %q and cannot become node %.200q", l.st.node, id)
	}
	l.st.mu.Lock()
	nacks, err := l.receive(l.st.client, r)
	l.st.mu.Unlock()
	if err != nil {
		return err
	}
	l.s.metrics.requests.WithLabelValues(resource.Type(r.GetTypeUrl()).Short()).Inc()
	for _, n := range nacks {
		l.s.metrics.nacks.WithLabelValues(n.Type.Short()).Inc()
		l.log.WarnContext(ctx, "proxy refused a resource", "type", n.Type.Short(), "resource", n.Name, "version", n.Version, "err", n.Reason)
	}
	return nil
}
