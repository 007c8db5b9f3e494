// Package lb answers load balancers that ask whether a proxy may get new traffic, as kube-proxy answers for its node.
package lb

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// syncPeriod is kube-proxy's default. A change may wait for twice of it, as there.
const syncPeriod = 30 * time.Second

// Options of a Server.
type Options struct {
	// Ready returns why the proxy cannot serve, nil if it can; a drain is no reason. Required.
	Ready func(context.Context) error
	// Begun says whether the pod has begun to end, which it tells before it ends the agent. Required.
	Begun func() bool
	// FromThisHost says whether a caller may read why. Required.
	FromThisHost func(*http.Request) bool
	// Limit is how long Envoy may take to apply what it has received. Default 60s.
	Limit time.Duration
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
	// Loop is told of each look at Envoy. Default: none.
	Loop *heartbeat.Loop
}

// Server answers /healthz, whether the proxy may get new traffic, and /livez, whether Envoy applies what it receives. It is safe for
// concurrent use.
type Server struct {
	o       Options
	changes changes
	metrics *metrics

	mu    sync.Mutex
	drain mesh.Drain
	// told is when End was called first, and terminating when drain began to say that the pod is being deleted; zero if it is not so.
	told, terminating time.Time
}

var _ http.Handler = (*Server)(nil)

// New returns a server that knows of no drain, and of no Envoy.
func New(o Options) *Server {
	if o.Limit <= 0 {
		o.Limit = 2 * syncPeriod
	}
	return &Server{o: o, changes: changes{limit: o.Limit}, metrics: newMetrics(o.Registerer)}
}

// State is what another Server goes on with.
type State struct {
	Drain mesh.Drain
	// Terminating is since when the pod is known to be deleted; zero if it is not.
	Terminating time.Time
}

// State returns what the last Set or Resume has left.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Drain: s.drain, Terminating: s.terminating}
}

// Resume goes on with the state of another Server.
func (s *Server) Resume(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain, s.terminating = state.Drain, time.Time{}
	if now := time.Now(); state.Drain.Terminating {
		s.terminating = now.Add(-max(0, now.Sub(state.Terminating))) // a clock that was set back makes it now
	}
	s.show()
}

// Set takes why the proxy should get no new traffic. It holds until the next call, and reports whether it is another than before.
func (s *Server) Set(d mesh.Drain) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.drain == d {
		return false
	}
	s.drain = d
	switch {
	case !d.Terminating:
		s.terminating = time.Time{}
	case s.terminating.IsZero():
		s.terminating = time.Now()
	}
	s.show()
	return true
}

// End says that this process, or its pod, was told to end: from now on the proxy gets no new traffic.
func (s *Server) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told.IsZero() {
		s.told = time.Now()
	}
	s.show()
}

// Ending returns since when /healthz fails because the proxy ends; zero if it does not end.
func (s *Server) Ending() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told.IsZero() || !s.terminating.IsZero() && s.terminating.Before(s.told) {
		return s.terminating
	}
	return s.told
}

// show needs mu.
func (s *Server) show() {
	s.metrics.drains(map[string]bool{
		reasonTerminating: s.drain.Terminating || !s.told.IsZero(), reasonNode: s.drain.Node != "",
		reasonAdministrator: s.drain.Administrator != "", reasonServedOn: s.drain.ServesOn != "",
	})
}
