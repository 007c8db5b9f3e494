// Package xds serves Envoy resources over the aggregated discovery service, delta and state of the world. It knows
// streams, subscriptions, ACKs and NACKs, and nothing of meshes.
package xds

import (
	"cmp"
	"context"
	"log/slog"
	"slices"
	"sync"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Source knows what proxies should have. Attach is called for each stream that a proxy opens, and returns the zero
// Desired for one that is not known yet; from then on its changes are published, until Detach was called for each of its
// streams. Both may be called from several goroutines, but never for one proxy at the same time.
type Source interface {
	Attach(id string) resource.Desired
	Detach(id string)
}

// Authorizer returns an error if the peer of ctx may not be the node of that id. Unless it is a gRPC status, the peer
// is told PermissionDenied with its text.
type Authorizer func(ctx context.Context, nodeID string) error

// Options of a Server. The zero value is usable.
type Options struct {
	// Logger for streams and NACKs. Default: none.
	Logger *slog.Logger
	// Registerer for the metrics sonde_xds_*. Default: none.
	Registerer prometheus.Registerer
	// FirstMessage is how long a stream may take to say who it is. Default 10s.
	FirstMessage time.Duration
	// SendTimeout is how long a proxy may not read what is sent to it before its stream is ended. Default 60s.
	SendTimeout time.Duration
	// AckTimeout is how long a proxy may take to answer before it is reported as late. Default 30s: Envoy withholds
	// an ACK for up to 15 seconds while a cluster warms.
	AckTimeout time.Duration
	// Gather is how long changes of endpoints gather at most for a proxy that has not answered to the last ones. Default 100ms.
	Gather time.Duration
	// StreamsPerNode may be open at once; a further one ends the oldest, which may be half-open. Default 3.
	StreamsPerNode int
}

func (o Options) withDefaults() Options {
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	o.FirstMessage = cmp.Or(o.FirstMessage, 10*time.Second)
	o.SendTimeout = cmp.Or(o.SendTimeout, time.Minute)
	o.AckTimeout = cmp.Or(o.AckTimeout, 30*time.Second)
	o.Gather = cmp.Or(o.Gather, 100*time.Millisecond)
	o.StreamsPerNode = cmp.Or(o.StreamsPerNode, 3)
	return o
}

// Server is the aggregated discovery service.
type Server struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer
	o         Options
	source    Source
	authorize Authorizer
	metrics   *metrics
	running   sync.WaitGroup // goroutines of streams

	mu    sync.Mutex
	nodes map[string]*node
}

var _ discoveryv3.AggregatedDiscoveryServiceServer = (*Server)(nil)

// node is one proxy and its streams, usually one.
type node struct {
	life    sync.Mutex // held over Attach and Detach, so that they come in order
	streams []*stream  // oldest first; guarded by Server.mu
}

// NewServer returns a server that asks src what proxies should have, and authorize who they are.
func NewServer(o Options, src Source, authorize Authorizer) *Server {
	s := &Server{o: o.withDefaults(), source: src, authorize: authorize, nodes: map[string]*node{}}
	s.metrics = newMetrics(o.Registerer, s.late)
	return s
}

// Register serves on r, which has to be made with ServerOptions. The transport is r's: mutual TLS, keepalive and the
// number of streams per connection.
func (s *Server) Register(r grpc.ServiceRegistrar) {
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(r, s)
}

// Wait returns when nothing of any stream runs any more. Call it when the gRPC server has stopped.
func (s *Server) Wait() { s.running.Wait() }

// Publish sets what these proxies should have from now on; those without a stream here are ignored. It never blocks:
// a stream that is busy finds the newest when it is ready.
func (s *Server) Publish(now map[string]resource.Desired) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, d := range now {
		n := s.nodes[id]
		if n == nil {
			continue
		}
		for _, st := range n.streams {
			st.slot.Store(&d)
			st.update()
		}
	}
}

// attach registers a stream and gives it what its proxy should have. The slot is registered first: what is published
// while Attach is under way is newer than what Attach returns, and stays.
func (s *Server) attach(id string, st *stream) {
	s.mu.Lock()
	n := s.nodes[id]
	if n == nil {
		n = &node{}
		s.nodes[id] = n
	}
	n.streams = append(n.streams, st)
	for _, old := range n.streams[:max(0, len(n.streams)-s.o.StreamsPerNode)] {
		old.end(status.Errorf(codes.Aborted, "node %q has opened %d newer streams", id, s.o.StreamsPerNode))
	}
	s.mu.Unlock()

	n.life.Lock()
	defer n.life.Unlock()
	d := s.source.Attach(id)
	st.slot.CompareAndSwap(nil, &d)
	st.look()
}

func (s *Server) detach(id string, st *stream) {
	s.mu.Lock()
	n := s.nodes[id]
	s.mu.Unlock()

	n.life.Lock()
	defer n.life.Unlock()
	s.source.Detach(id)
	s.mu.Lock()
	defer s.mu.Unlock()
	n.streams = slices.DeleteFunc(n.streams, func(other *stream) bool { return other == st })
	if len(n.streams) == 0 {
		delete(s.nodes, id)
	}
}

// Status describes all streams, sorted by node and age.
func (s *Server) Status() []ProxyStatus {
	var all []ProxyStatus
	for _, st := range s.all() {
		all = append(all, st.status(s.o.AckTimeout))
	}
	slices.SortFunc(all, func(a, b ProxyStatus) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), a.Connected.Compare(b.Connected))
	})
	return all
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
		if st.late(s.o.AckTimeout) {
			late++
		}
	}
	return float64(late)
}
