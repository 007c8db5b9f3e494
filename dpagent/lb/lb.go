// Package lb tells load balancers whether a proxy may get new traffic, as kube-proxy does for its node.
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

// syncPeriod is kube-proxy's default sync period. As in kube-proxy, a change may take twice as long.
const syncPeriod = 30 * time.Second

// Options of a Server.
type Options struct {
	// Ready returns why the proxy cannot serve, or nil; it ignores drains. Required.
	Ready func(context.Context) error
	// Begun reports whether the pod is being deleted, which happens before the agent gets a signal. Required.
	Begun func() bool
	// FromThisHost reports whether a caller may see details. Required.
	FromThisHost func(*http.Request) bool
	// Limit bounds how long Envoy may take to apply what it has received. Default 60s.
	Limit time.Duration
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
	// Loop monitors each check of Envoy. Default: none.
	Loop *heartbeat.Loop
}

// Server answers /healthz (may the proxy get new traffic?) and /livez (does Envoy apply what it receives?). It is safe
// for concurrent use.
type Server struct {
	o       Options
	changes changes
	metrics *metrics

	mu    sync.Mutex
	drain mesh.Drain
	// told is when End was first called, and terminating is when a drain first reported that the pod is being deleted;
	// zero if never.
	told, terminating time.Time
}

var _ http.Handler = (*Server)(nil)

// New returns a server without a drain that has not seen Envoy yet.
func New(o Options) *Server {
	if o.Limit <= 0 {
		o.Limit = 2 * syncPeriod
	}
	return &Server{o: o, changes: changes{limit: o.Limit}, metrics: newMetrics(o.Registerer)}
}

// State is the state that another Server resumes with.
type State struct {
	Drain mesh.Drain
	// Terminating is since when the pod is being deleted; zero if it is not.
	Terminating time.Time
}

// State returns the state after the last Set or Resume.
func (s *Server) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return State{Drain: s.drain, Terminating: s.terminating}
}

// Resume continues with the state of another Server.
func (s *Server) Resume(state State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.drain, s.terminating = state.Drain, time.Time{}
	if now := time.Now(); state.Drain.Terminating {
		s.terminating = now.Add(-max(0, now.Sub(state.Terminating))) // now, if the clock was set back
	}
	s.show()
}

// Set sets why the proxy should get no new traffic, until the next call. It reports whether this changes the state.
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

// End records that this process or its pod is shutting down: from now on the proxy gets no new traffic.
func (s *Server) End() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told.IsZero() {
		s.told = time.Now()
	}
	s.show()
}

// Ending returns since when /healthz fails because the proxy shuts down; zero if it does not.
func (s *Server) Ending() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.told.IsZero() || !s.terminating.IsZero() && s.terminating.Before(s.told) {
		return s.terminating
	}
	return s.told
}

// show updates the gauge. The caller holds mu.
func (s *Server) show() {
	s.metrics.drains(map[string]bool{
		reasonTerminating: s.drain.Terminating || !s.told.IsZero(), reasonNode: s.drain.Node != "",
		reasonAdministrator: s.drain.Administrator != "", reasonServedOn: s.drain.ServesOn != "",
	})
}
