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
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// stream is one ADS stream of a connected proxy.
type stream struct {
	server    *Server
	node      string
	says      resource.Metadata
	connected time.Time
	send      func(*response) error
	desired   atomic.Pointer[resource.Desired] // the newest state that the proxy should have; nil until Attach returns
	ended     chan error                       // buffers one error: why the stream ends
	authorize func() error                     // checks whether the peer may still use the node ID
	pace      *pace                            // limits the work of its node
	held      atomic.Int64                     // this stream's share of maxNameBytes

	mu      sync.Mutex // never held while something is sent
	proxy   *proxy
	sending bool // a goroutine is sending; it checks for more before it ends
	closed  bool
	timer   *time.Timer // fires when proxy.wait is over; nil until needed
}

func newStream(s *Server, node *corev3.Node, sotw bool, send func(*response) error) *stream {
	st := &stream{
		server: s, node: node.GetId(), says: s.metadataOf(node), connected: time.Now(), proxy: newProxy(sotw), send: send,
		ended: make(chan error, 1),
	}
	st.proxy.gatherTime = gatherTime
	st.proxy.drainTime = s.drainTime(node)
	return st
}

// end ends the stream. If it is called more than once, the first reason applies.
func (st *stream) end(err error) {
	select {
	case st.ended <- err:
	default:
	}
}

// endStalled ends the stream of a proxy that does not read.
func (st *stream) endStalled() {
	st.end(status.Errorf(codes.DeadlineExceeded, "the proxy has not read for %s", sendTimeout))
}

// close makes sure that no more responses are sent.
func (st *stream) close() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.closed = true
	if st.timer != nil {
		st.timer.Stop()
	}
}

// late reports whether a response has waited for its ACK or NACK for longer than ackTimeout.
func (st *stream) late() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	since := st.proxy.unanswered()
	return !since.IsZero() && time.Since(since) > ackTimeout
}

func (st *stream) status() ProxyStatus {
	late := st.late()
	st.mu.Lock()
	defer st.mu.Unlock()
	return ProxyStatus{
		Node: st.node, Says: st.says, Delta: !st.proxy.sotw, Connected: st.connected,
		Known: st.proxy.desired.Known(), Late: late, Types: st.proxy.status(),
	}
}

// request is the common part of both protocols' requests.
type request interface {
	GetNode() *corev3.Node
	GetTypeUrl() string
}

// protocol is the part of a stream that depends on its protocol, delta or state of the world.
type protocol[Req request] struct {
	sotw    bool
	recv    func() (Req, error)
	send    func(*response) error
	receive func(*proxy, Req) ([]NACK, error)
	names   func(Req) int // number of names in a request
}

// DeltaAggregatedResources serves the delta protocol.
func (s *Server) DeltaAggregatedResources(
	g grpc.BidiStreamingServer[discoveryv3.DeltaDiscoveryRequest, discoveryv3.DeltaDiscoveryResponse],
) error {
	return serve(g.Context(), s, protocol[*discoveryv3.DeltaDiscoveryRequest]{
		recv: func() (*discoveryv3.DeltaDiscoveryRequest, error) {
			r := &discoveryv3.DeltaDiscoveryRequest{}
			return r, receiveRequest(g, deltaFields, r)
		},
		receive: (*proxy).receiveDelta,
		names: func(r *discoveryv3.DeltaDiscoveryRequest) int {
			return len(r.GetResourceNamesSubscribe()) + len(r.GetResourceNamesUnsubscribe()) + len(
				r.GetInitialResourceVersions())
		},
		send: func(r *response) error {
			m, err := r.delta()
			if err != nil {
				return err
			}
			return g.SendMsg(m)
		},
	})
}

// StreamAggregatedResources serves the state-of-the-world protocol.
func (s *Server) StreamAggregatedResources(
	g grpc.BidiStreamingServer[discoveryv3.DiscoveryRequest, discoveryv3.DiscoveryResponse],
) error {
	return serve(g.Context(), s, protocol[*discoveryv3.DiscoveryRequest]{
		sotw: true,
		recv: func() (*discoveryv3.DiscoveryRequest, error) {
			r := &discoveryv3.DiscoveryRequest{}
			return r, receiveRequest(g, sotwFields, r)
		},
		receive: (*proxy).receiveSotw,
		names:   func(r *discoveryv3.DiscoveryRequest) int { return len(r.GetResourceNames()) },
		send:    func(r *response) error { return g.Send(r.state()) },
	})
}

// serve runs one stream until it ends. One goroutine receives, and another one sends while there is something to send.
// Both may block in gRPC until the stream ends. So serve itself does neither, to be able to end the stream at any time
// by returning; gRPC then makes both goroutines end.
func serve[Req request](ctx context.Context, s *Server, p protocol[Req]) error {
	first, err := receiveFirst(ctx, s, p.recv)
	if err != nil {
		return ignoreEOF(err)
	}
	id := first.GetNode().GetId()
	pace, err := s.admitAtPace(ctx, id)
	if err != nil {
		s.metrics.rejected.Inc()
		s.o.Logger.WarnContext(ctx, "stream rejected", append(s.o.Describe(shorten(id)), "peer", peerAddress(ctx),
			"err", err)...)
		return err
	}

	st := newStream(s, first.GetNode(), p.sotw, p.send)
	st.authorize, st.pace = func() error { return s.admit(ctx, id) }, pace
	log := s.o.Logger.With(s.o.Describe(id)...)
	s.metrics.streams.Inc()
	defer s.metrics.streams.Dec()
	if err := s.attach(id, st); err != nil {
		return err
	}
	defer s.detach(id, st)
	log.InfoContext(ctx, "proxy connected", "delta", !p.sotw)
	defer st.close()

	s.running.Go(func() { st.end(receive(ctx, st, p, first, log)) })
	select {
	case err = <-st.ended:
	case <-ctx.Done():
		err = status.FromContextError(ctx.Err()).Err()
	}
	level := slog.LevelInfo
	if s.o.Aged(ctx) {
		level = slog.LevelDebug
	}
	log.Log(ctx, level, "proxy disconnected", "err", err)
	return ignoreEOF(err)
}

// peerAddress returns the address of the caller, or "" for connections in memory.
func peerAddress(ctx context.Context) string {
	if p, ok := peer.FromContext(ctx); ok {
		return p.Addr.String()
	}
	return ""
}

// ignoreEOF returns nil for io.EOF, which means that the peer ended the stream itself, and otherwise err.
func ignoreEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

// receiveFirst waits for the first request, for at most firstMessageTimeout.
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
	timer := time.NewTimer(firstMessageTimeout)
	defer timer.Stop()
	var none Req
	select {
	case f := <-first:
		return f.r, f.err
	case <-ctx.Done():
		return none, status.FromContextError(ctx.Err()).Err()
	case <-timer.C:
		return none, status.Errorf(codes.DeadlineExceeded, "no request within %s", firstMessageTimeout)
	}
}

// admit checks the node ID in the first request: it must be valid, and the peer must be authorised to use it.
func (s *Server) admit(ctx context.Context, id string) error {
	if id == "" {
		return status.Error(codes.InvalidArgument, "the first request of a stream must have node.id")
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

// receive handles the first request r and those after it, until the stream ends or a request is invalid.
func receive[Req request](ctx context.Context, st *stream, p protocol[Req], r Req, log *slog.Logger) error {
	for {
		if err := receiveOne(ctx, st, p, r, log); err != nil {
			return err
		}
		var err error
		if r, err = p.recv(); err != nil {
			return err
		}
	}
}

// receiveOne handles one request, at the pace of the node.
func receiveOne[Req request](ctx context.Context, st *stream, p protocol[Req], r Req, log *slog.Logger) error {
	if id := r.GetNode().GetId(); id != "" && id != st.node {
		return status.Errorf(codes.PermissionDenied, "the stream is of node %q and cannot become node %.200q", st.node, id)
	}
	defer st.pace.takeTurn(ctx, p.names(r))()
	nacks, cost, err := st.handleRequest(func(c *proxy) ([]NACK, error) { return p.receive(c, r) })
	if err == nil {
		err = st.server.reserve(st, cost.held)
	}
	if err != nil {
		return err
	}
	if resource.Type(r.GetTypeUrl()) == resource.Listener {
		st.server.reportListeners(st.node)
	}
	st.server.metrics.requests.WithLabelValues(typeLabel(resource.Type(r.GetTypeUrl()))).Inc()
	for _, n := range nacks {
		st.server.metrics.nacks.WithLabelValues(typeLabel(n.Type)).Inc()
		logNACK(ctx, log, n)
	}
	st.charge(ctx, cost.work)
	return nil
}

// logNACK logs a refused resource, at level Debug if it is refused repeatedly for a permanent reason.
func logNACK(ctx context.Context, log *slog.Logger, n NACK) {
	level := slog.LevelWarn
	if n.Attempts > 1 {
		level = slog.LevelDebug
	}
	log.Log(ctx, level, "proxy refused a resource", "type", n.Type.Short(), "resource", n.Name,
		"resourceVersion", n.Version, "err", cut(n.Reason, maxLogged),
		"attempts", n.Attempts, "retryAt", n.RetryAt)
}

// cost is the work of a request, and the bytes that the server keeps because of it.
type cost struct{ work, held int }

// handleRequest passes one request to the proxy, and starts to send the response, if any.
func (st *stream) handleRequest(receive func(*proxy) ([]NACK, error)) ([]NACK, cost, error) {
	st.mu.Lock()
	defer st.mu.Unlock()
	nacks, err := receive(st.proxy)
	c := cost{st.proxy.takeWork(), st.proxy.held()}
	if err != nil || st.sending {
		return nacks, c, err
	}
	if r := st.next(); r != nil {
		st.startSending(r)
	}
	return nacks, c, nil
}

// loadDesired passes the desired state to the proxy. It sends nothing, since no request has been handled yet.
func (st *stream) loadDesired() {
	st.mu.Lock()
	defer st.mu.Unlock()
	st.proxy.setDesired(*st.desired.Load())
}

// update starts to send the missing part of the desired state. It does not block.
func (st *stream) update() {
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.sending { // otherwise the sending goroutine finds the change itself
		st.startSending(nil)
	}
}

// startSending starts a goroutine that sends r, if it is not nil, and then each further response. The goroutine ends
// when nothing is left to send, so that an idle stream has no goroutine. The caller holds mu.
func (st *stream) startSending(r *response) {
	if st.closed {
		return
	}
	st.sending = true
	st.server.running.Go(func() {
		if r == nil {
			r = st.nextOrStop()
		}
		for ; r != nil; r = st.nextOrStop() {
			stalled := time.AfterFunc(sendTimeout, st.endStalled)
			err := st.send(r)
			stalled.Stop()
			if err != nil {
				st.end(err)
				return // sending stays true: nothing more can be sent
			}
			st.sent(r)
		}
	})
}

// sent drops the parts of a response that are needed only to send it.
func (st *stream) sent(r *response) {
	st.mu.Lock()
	defer st.mu.Unlock()
	r.full = nil
}

// nextOrStop returns the next response. If there is no response, it returns nil and records that no goroutine is
// sending.
func (st *stream) nextOrStop() *response {
	st.mu.Lock()
	if st.closed {
		st.sending = false
		st.mu.Unlock()
		return nil
	}
	known := st.proxy.desired.Known()
	st.proxy.setDesired(*st.desired.Load())
	known = known || !st.proxy.desired.Known()
	r := st.next()
	st.sending = r != nil
	st.mu.Unlock()
	if !known {
		st.server.reportListeners(st.node) // the proxy's first requests came before its resources were known
	}
	return r
}

// next returns the next response, and counts it. If something has to wait, it sets the timer. The caller holds mu.
func (st *stream) next() *response {
	r := st.proxy.next()
	if r != nil {
		st.server.metrics.responses.WithLabelValues(typeLabel(r.subscription.kind)).Inc()
		st.server.metrics.resources.WithLabelValues(typeLabel(r.subscription.kind)).Add(float64(max(len(r.resources),
			len(r.full))))
	} else if d := st.proxy.wait(); d > 0 && !st.closed {
		if st.timer == nil {
			st.timer = time.AfterFunc(d, st.update)
		} else {
			st.timer.Reset(d)
		}
	}
	return r
}
