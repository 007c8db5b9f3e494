// Package xds serves Envoy resources over the aggregated discovery service (ADS), in both protocols, delta and state of
// the world. It handles streams, subscriptions, ACKs and NACKs, and has no notion of meshes.
package xds

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Source provides the desired resources of proxies. The server calls Attach when a proxy opens a stream, and Detach
// when that stream ends. Attach returns the zero Desired for an unknown proxy. While a proxy has a stream, the source
// publishes changes of its desired resources, based on the newest Attach. Several goroutines may call both methods, but
// never for the same proxy at once.
type Source interface {
	Attach(id string, says resource.Metadata) resource.Desired
	Detach(id string)
}

// Authorizer returns an error if the peer of ctx may not use this node id. A gRPC status is returned to the peer
// unchanged, any other error as PermissionDenied with its text.
type Authorizer func(ctx context.Context, nodeID string) error

const (
	// firstMessageTimeout is how long a stream may take to send its first request, which has the node ID.
	firstMessageTimeout = 10 * time.Second
	// sendTimeout is how long sending one response may take. After that the server ends the stream, since the proxy does
	// not read.
	sendTimeout = time.Minute
	// ackTimeout is how long a proxy may take to ACK or NACK a response before it is reported as late. Envoy withholds an
	// ACK for up to 15 seconds while a cluster warms.
	ackTimeout = 30 * time.Second
	// gatherTime is how long changes of endpoints wait at most, to be sent together, while a proxy has not answered the
	// last response with endpoints.
	gatherTime = 100 * time.Millisecond
	// streamsPerNode is the maximum number of open streams of one node. One more ends the oldest, whose connection may be
	// dead without the server noticing.
	streamsPerNode = 3
)

// Options of a Server. The zero value is usable.
type Options struct {
	// Logger for streams and NACKs. Default: no logging.
	Logger *slog.Logger
	// Describe returns the attributes of a node for the Logger, keys and values, in a new slice. Default: the node ID
	// under the key node.
	Describe func(node string) []any
	// Registerer for the metrics sonde_xds_*. Default: no metrics.
	Registerer prometheus.Registerer
	// DrainTime is how long Envoy keeps the connections of a replaced or removed listener, unless its node metadata
	// sets it (resource.NodeDrainTime). Resources that only such a listener may still use are removed after it. Default
	// 0: at once, as clients other than Envoy expect.
	DrainTime time.Duration
	// MaxDrainTime is the longest drain time allowed in node metadata. Default DrainTime.
	MaxDrainTime time.Duration
	// Listeners is called with the listeners that a proxy has accepted, whenever they change. It must return at once.
	// Default: none.
	Listeners func(node string, s ListenerStatus)
	// Aged reports whether a stream ended because its connection reached its maximum age. The server then logs nothing,
	// since the proxy reconnects at once. Default: never.
	Aged func(ctx context.Context) bool
}

func (o Options) withDefaults() Options {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Describe == nil {
		o.Describe = func(node string) []any { return []any{"node", node} }
	}
	if o.Aged == nil {
		o.Aged = func(context.Context) bool { return false }
	}
	o.MaxDrainTime = cmp.Or(o.MaxDrainTime, o.DrainTime)
	return o
}

// drainMargin is added to a drain time: Envoy may be busy when its timer ends.
const drainMargin = time.Second

// drainTime returns how long removals are held for a node: its metadata or the default, plus drainMargin.
func (s *Server) drainTime(node *corev3.Node) time.Duration {
	if d := s.statedDrainTime(node); d > 0 {
		return d + drainMargin
	}
	return 0
}

func (s *Server) statedDrainTime(node *corev3.Node) time.Duration {
	value, ok := node.GetMetadata().GetFields()[resource.NodeDrainTime]
	if !ok {
		return s.o.DrainTime
	}
	d, err := time.ParseDuration(value.GetStringValue())
	if err != nil || d < 0 || d > s.o.MaxDrainTime {
		s.o.Logger.Warn("invalid drain time of node, using the default",
			append(s.o.Describe(shorten(node.GetId())), "key", resource.NodeDrainTime,
				"value", shorten(value.String()), "allowed", "a duration from 0s to "+s.o.MaxDrainTime.String(),
				"default", s.o.DrainTime)...)
		return s.o.DrainTime
	}
	return d
}

// Server is the aggregated discovery service.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	o         Options
	source    Source
	authorize Authorizer
	metrics   *metrics
	running   sync.WaitGroup // the goroutines of all streams

	mu    sync.Mutex
	nodes map[string]*node
	paces map[string]*pace // by node
}

var _ discoveryv3.AggregatedDiscoveryServiceServer = (*Server)(nil)

// node is one proxy with its streams, of which there is usually one.
type node struct {
	attachMu sync.Mutex // held during Attach and Detach, so that they never overlap for one proxy
	streams  []*stream  // oldest first; guarded by Server.mu

	reportMu sync.Mutex      // held during Options.Listeners; taken before any other lock
	reported *ListenerStatus // what was reported last; nil if nothing was
}

// NewServer returns a server that gets the desired resources of proxies from src and checks their identity with
// authorize.
func NewServer(o Options, src Source, authorize Authorizer) *Server {
	s := &Server{o: o.withDefaults(), source: src, authorize: authorize, nodes: map[string]*node{},
		paces: map[string]*pace{}}
	s.metrics = newMetrics(o.Registerer, s.late, s.refused)
	return s
}

// Register registers the service with r, a grpc.Server that was made with ServerOptions. mTLS, keepalive and the
// number of streams per connection are options of r, too.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, s)
}

// Wait waits until all goroutines of streams have ended. Call it after the gRPC server has stopped.
func (s *Server) Wait() { s.running.Wait() }

// Publish sets the new desired resources of these proxies, and ignores proxies without a stream. It never waits for a
// proxy: a busy stream uses the newest state when it is ready.
func (s *Server) Publish(now map[string]resource.Desired) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, d := range now {
		n := s.nodes[id]
		if n == nil {
			continue
		}
		for _, st := range n.streams {
			if st.says != d.For {
				continue // the stream has just attached with newer metadata, or a newer stream has and this one ends soon
			}
			st.desired.Store(&d)
			st.update()
		}
	}
}

// Reauthorize ends the streams of these nodes whose peer the Authorizer no longer allows. When it returns, no more is
// sent on these streams.
func (s *Server) Reauthorize(ids []string) {
	for _, id := range ids {
		s.mu.Lock()
		var streams []*stream
		if n := s.nodes[id]; n != nil {
			streams = slices.Clone(n.streams)
		}
		s.mu.Unlock()
		for _, st := range streams {
			if err := st.authorize(); err != nil {
				st.end(err)
				st.close()
			}
		}
	}
}

// attach registers a stream, and then asks the source for the desired resources. If something is published in between,
// it is newer than what Attach returns, so attach does not overwrite it. An error means that authorisation ended while
// the stream was not registered, so that Reauthorize could not find it; the stream is then not registered.
func (s *Server) attach(id string, st *stream) error {
	s.mu.Lock()
	n := s.nodes[id]
	if n == nil {
		n = &node{}
		s.nodes[id] = n
	}
	n.streams = append(n.streams, st)
	for _, old := range n.streams[:max(0, len(n.streams)-streamsPerNode)] {
		old.end(status.Errorf(codes.Aborted, "node %q has opened %d newer streams", id, streamsPerNode))
	}
	s.mu.Unlock()
	if err := st.authorize(); err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.remove(id, st)
		return err
	}

	n.attachMu.Lock()
	defer n.attachMu.Unlock()
	s.endDiffering(id, n, st)
	d := s.source.Attach(id, st.says)
	st.desired.CompareAndSwap(nil, &d)
	st.loadDesired()
	return nil
}

// remove takes a stream from its node, and drops a node without streams. The caller holds mu.
func (s *Server) remove(id string, st *stream) {
	n := s.nodes[id]
	n.streams = slices.DeleteFunc(n.streams, func(other *stream) bool { return other == st })
	if len(n.streams) == 0 {
		delete(s.nodes, id)
	}
}

// detach removes a stream. If the proxy has another stream, its status is reported now.
func (s *Server) detach(id string, st *stream) {
	s.detachStream(id, st)
	s.reportListeners(id)
}

func (s *Server) detachStream(id string, st *stream) {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()

	n.attachMu.Lock()
	defer n.attachMu.Unlock()
	s.source.Detach(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.remove(id, st)
}

// Status describes all streams, sorted by node, and then from the oldest to the newest.
func (s *Server) Status() []ProxyStatus {
	var all []ProxyStatus
	for _, st := range s.all() {
		all = append(all, st.status())
	}
	slices.SortFunc(all, func(a, b ProxyStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Connected.Compare(b.Connected))
	})
	return all
}

// Sample returns the desired resources of up to n random nodes, according to their newest streams.
func (s *Server) Sample(n int) map[string]resource.Desired {
	s.mu.Lock()
	defer s.mu.Unlock()
	sample := make(map[string]resource.Desired, n)
	for id, node := range s.nodes { // in random order
		if len(sample) == n {
			break
		}
		if d := node.streams[len(node.streams)-1].desired.Load(); d != nil {
			sample[id] = *d
		}
	}
	return sample
}

func (s *Server) all() []*stream {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []*stream
	for _, n := range s.nodes {
		all = append(all, n.streams...)
	}
	return all
}

func (s *Server) late() float64 {
	late := 0
	for _, st := range s.all() {
		if st.late() {
			late++
		}
	}
	return float64(late)
}

func (s *Server) refused() map[resource.Type]int {
	refused := map[resource.Type]int{}
	for _, st := range s.all() {
		for _, t := range st.status().Types {
			refused[t.Type] += len(t.NACKs)
		}
	}
	return refused
}
