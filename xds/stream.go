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
	s         *Server
	node      string
	connected time.Time
	send      func(*reply) error
	slot      atomic.Pointer[resource.Desired] // what the proxy should have, nil before Attach
	ended     chan error                       // holds one: why the stream ends

	mu       sync.Mutex // never held while something is sent
	client   *client
	sending  bool // a goroutine sends, and looks for more before it ends
	closed   bool
	gathered *time.Timer // sends what has gathered for long enough; nil before that is needed
}

func newStream(s *Server, id string, sotw bool, send func(*reply) error) *stream {
	st := &stream{s: s, node: id, connected: time.Now(), client: newClient(sotw), send: send, ended: make(chan error, 1)}
	st.client.gather = s.o.Gather
	return st
}

// end ends the stream, for the first reason that is given.
func (st *stream) end(err error) {
	select {
	case st.ended <- err:
	default:
	}
}

// stall ends the stream of a proxy that does not read.
func (st *stream) stall() {
	st.end(status.Errorf(codes.DeadlineExceeded, "the proxy has not read for %s", st.s.o.SendTimeout))
}

// close makes sure that nothing more is sent.
func (st *stream) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	if st.gathered != nil {
		st.gathered.Stop()
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
type protocol[Req request] struct {
	sotw    bool
	recv    func() (Req, error)
	send    func(*reply) error
	receive func(*client, Req) ([]NACK, error)
}

// DeltaAggregatedResources serves the delta protocol.
func (s *Server) DeltaAggregatedResources(g grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse]) error {
	return serve(g.Context(), s, protocol[*discoveryv3.DeltaDiscoveryRequest]{
		recv: g.Recv, receive: (*client).receiveDelta,
		send: func(r *reply) error {
			f, err := r.delta()
			if err != nil {
				return err
			}
			return g.SendMsg(f)
		},
	})
}

// StreamAggregatedResources serves the state of the world.
func (s *Server) StreamAggregatedResources(g grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse]) error {
	return serve(g.Context(), s, protocol[*discoveryv3.DiscoveryRequest]{
		sotw: true, recv: g.Recv, receive: (*client).receiveSotw,
		send: func(r *reply) error { return g.Send(r.state()) },
	})
}

// serve runs one stream to its end. A goroutine receives, and while there is something to say another one sends; both may
// block in gRPC for as long as the stream lives, so this one, which must be able to end it, does neither. They end right
// after it returned.
func serve[Req request](ctx context.Context, s *Server, p protocol[Req]) error {
	first, err := receiveFirst(ctx, s, p.recv)
	if err != nil {
		return end(err)
	}
	id := first.GetNode().GetId()
	if err := s.admit(ctx, id); err != nil {
		s.metrics.rejected.Inc()
		s.o.Logger.WarnContext(ctx, "stream refused", "node", cut(id), "err", err)
		return err
	}

	st := newStream(s, id, p.sotw, p.send)
	log := s.o.Logger.With("node", id)
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	log.InfoContext(ctx, "proxy connected", "delta", !p.sotw)
	s.attach(id, st)
	defer s.detach(id, st)
	defer st.close()

	s.running.Go(func() { st.end(receive(ctx, st, p, first, log)) })
	select {
	case err = <-st.ended:
	case <-ctx.Done():
		err = status.FromContextError(ctx.Err()).Err()
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

// receiveFirst does not wait for ever.
func receiveFirst[Req any](ctx context.Context, s *Server, recv func() (Req, error)) (Req, error) {
	type received struct {
		r   Req
		err error
	}
	first := make(chan received, 1)
	s.running.Go(func() {
		r, err := recv()
		first <- received{r, err}
	})
	timer := time.NewTimer(s.o.FirstMessage)
	defer timer.Stop()
	var none Req
	select {
	case f := <-first:
		return f.r, f.err
	case <-ctx.Done():
		return none, status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		return none, status.Errorf(codes.DeadlineExceeded, "no request within %s", s.o.FirstMessage)
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

// receive takes requests until there are no more, or one is wrong.
func receive[Req request](ctx context.Context, st *stream, p protocol[Req], r Req, log *slog.Logger) error {
	for {
		if id := r.GetNode().GetId(); id != "" && id != st.node {
			return status.Errorf(codes.PermissionDenied, "the stream is of node %q and cannot become node %.200q", st.node, id)
		}
		nacks, err := st.take(func(c *client) ([]NACK, error) { return p.receive(c, r) })
		if err != nil {
			return err
		}
		st.s.metrics.requests.WithLabelValues(resource.Type(r.GetTypeUrl()).Short()).Inc()
		for _, n := range nacks {
			st.s.metrics.nacks.WithLabelValues(n.Type.Short()).Inc()
			log.WarnContext(ctx, "proxy refused a resource", "type", n.Type.Short(), "resource", n.Name, "version", n.Version, "err", n.Reason)
		}
		if r, err = p.recv(); err != nil {
			return err
		}
	}
}

// take gives one request to the client, and sends what that asks for.
func (st *stream) take(receive func(*client) ([]NACK, error)) ([]NACK, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	nacks, err := receive(st.client)
	if err != nil || st.sending {
		return nacks, err
	}
	if r := st.next(); r != nil {
		st.start(r)
	}
	return nacks, nil
}

// look takes what is in the slot for what the proxy should have, before there is anything to say.
func (st *stream) look() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.client.want(*st.slot.Load())
}

// update sends what differs in the slot from what the proxy has. It does not block.
func (st *stream) update() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.sending { // else it is seen after what is on its way
		st.start(nil)
	}
}

// start has r sent, if it is one, and all that there is to say after it. A stream at rest has no goroutine for that. It needs mu.
func (st *stream) start(r *reply) {
	if st.closed {
		return
	}
	st.sending = true
	st.s.running.Go(func() {
		if r == nil {
			r = st.after()
		}
		for ; r != nil; r = st.after() {
			stalled := time.AfterFunc(st.s.o.SendTimeout, st.stall)
			err := st.send(r)
			stalled.Stop()
			if err != nil {
				st.end(err)
				return // with sending set: nothing can be sent any more
			}
		}
	})
}

// after returns what is to be sent next, and ends sending where there is nothing.
func (st *stream) after() *reply {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.client.want(*st.slot.Load())
	r := st.next()
	st.sending = r != nil
	return r
}

// next needs mu.
func (st *stream) next() *reply {
	r := st.client.next()
	if r != nil {
		st.s.metrics.responses.WithLabelValues(r.topic.kind.Short()).Inc()
		st.s.metrics.resources.WithLabelValues(r.topic.kind.Short()).Add(float64(max(len(r.puts), len(r.full))))
	} else if d := st.client.gathers(); d > 0 && !st.closed {
		if st.gathered == nil {
			st.gathered = time.AfterFunc(d, st.update)
		} else {
			st.gathered.Reset(d)
		}
	}
	return r
}
