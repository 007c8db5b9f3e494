package xds

import (
	"context"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// awaitInterval is how often Await checks whether the proxies have answered.
const awaitInterval = 5 * time.Millisecond

// Await waits until these nodes have answered all clusters and endpoints that were published for them before, or ctx
// ends. It does not wait for a node without a stream, which gets the newest state when it opens one.
func (s *Server) Await(ctx context.Context, ids []string) {
	again := time.NewTicker(awaitInterval)
	defer again.Stop()
	for _, id := range ids {
		for !s.answered(id) {
			select {
			case <-ctx.Done():
				return
			case <-again.C:
			}
		}
	}
}

// answered reports whether all clusters and endpoints were sent on the node's streams, and none is in flight.
func (s *Server) answered(id string) bool {
	s.mu.Lock()
	var streams []*stream
	if n := s.nodes[id]; n != nil {
		streams = slices.Clone(n.streams)
	}
	s.mu.Unlock()
	return !slices.ContainsFunc(streams, func(st *stream) bool { return !st.answered() })
}

func (st *stream) answered() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	// the stream's sending goroutine has not handled it yet
	if d := st.desired.Load(); d == nil || *d != st.proxy.desired && d.Known() {
		return st.closed
	}
	for _, kind := range []resource.Type{resource.Cluster, resource.Endpoint} {
		if s := st.proxy.subscription(kind); len(s.pending) > 0 || len(s.inFlight) > 0 {
			return st.closed
		}
	}
	return true
}
