// Package serviceprobe probes whether applications can take traffic, where there is no kubelet. It follows the written
// Dataplane, with the checks and rules of a Kubernetes readiness probe.
package serviceprobe

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Probe is how to probe the application behind one inbound.
type Probe struct {
	// Inbound is the address in the mesh, and Application is the address to probe.
	Inbound, Application netip.AddrPort
	// Check has a handler with the port of Application.
	Check mesh.Probe
	// Period between two checks, and Timeout of each.
	Period, Timeout time.Duration
	// FailureThreshold and SuccessThreshold are how many consecutive checks change the State.
	FailureThreshold, SuccessThreshold uint32
}

// State is the result of an inbound's probe.
type State struct {
	Ready bool
	// NoVerdict means that no check has reached a verdict, because of Reason. Ready is then meaningless.
	NoVerdict bool
	// Reason is why the inbound is not ready. It is human-readable, has at most 512 bytes, and no text from the
	// application.
	Reason string
}

// Reporter receives each change. Its methods must return at once. *session.Readiness implements it.
type Reporter interface {
	// Set replaces the State of an inbound.
	Set(inbound netip.AddrPort, s State)
	// Forget reports that an inbound no longer has a probe.
	Forget(inbound netip.AddrPort)
}

// Options of a Server. All but Loop are required.
type Options struct {
	Reporter Reporter
	// Logger gets each change of a State.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Loop monitors the check of each set of probes. Default: none.
	Loop *heartbeat.Loop
}

// Server runs the probes of the last Set; none before the first Set. It is safe for concurrent use.
type Server struct {
	o       Options
	metrics *metrics
	changed run.Signal // probes may have changed
	// newCheck returns a check of an application. Tests replace this function.
	newCheck func(Probe) check

	mu     sync.Mutex
	probes []Probe
	loops  map[netip.AddrPort]*heartbeat.Loop
}

// New returns a server. Run must be called.
func New(o Options) *Server {
	return &Server{
		o: o, metrics: newMetrics(o.Registerer), changed: run.NewSignal(), loops: map[netip.AddrPort]*heartbeat.Loop{},
		newCheck: func(p Probe) check { return probe.NewCheck(p.Check, p.Application.Addr(), p.Timeout, nil) },
	}
}

// Set replaces the probes and returns at once. Each probe has a different inbound. Unchanged probes continue
// undisturbed.
func (s *Server) Set(probes []Probe) {
	s.mu.Lock()
	s.probes = probes
	s.mu.Unlock()
	s.changed.Set()
}

// Run runs the probes until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	workers := map[netip.AddrPort]*worker{}
	for ctx.Err() == nil {
		s.o.Loop.Begin()
		s.follow(ctx, workers)
		s.o.Loop.End()
		select {
		case <-s.changed:
		case <-ctx.Done():
		}
	}
	for _, w := range workers {
		w.stop()
	}
	return nil
}

// follow starts and stops workers to match the current probes. An inbound with a changed probe keeps its State until
// the new probe finds a different one. Otherwise a changed probe would take out all replicas of a service at once.
func (s *Server) follow(ctx context.Context, workers map[netip.AddrPort]*worker) {
	s.mu.Lock()
	probes := s.probes
	s.mu.Unlock()
	wanted := map[netip.AddrPort]Probe{}
	for _, p := range probes {
		wanted[p.Inbound] = p
	}
	for at, w := range workers {
		if _, ok := wanted[at]; !ok {
			w.stop()
			delete(workers, at)
			s.watch(at, nil)
			s.metrics.forget(at)
			s.o.Reporter.Forget(at)
		}
	}
	for at, p := range wanted {
		earlier := workers[at]
		if earlier != nil {
			if reflect.DeepEqual(earlier.probe, p) {
				continue
			}
			earlier.stop()
		}
		w := newWorker(p, s, earlier)
		workers[at] = w
		s.watch(at, w.loop)
		w.start(ctx)
	}
}

// watch adds the loop of an inbound to those that Alive checks; nil removes it.
func (s *Server) watch(at netip.AddrPort, loop *heartbeat.Loop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if loop == nil {
		delete(s.loops, at)
		return
	}
	s.loops[at] = loop
}

// Alive returns the stuck probes, or nil. It ignores the state of applications.
func (s *Server) Alive(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, loop := range s.loops {
		errs = append(errs, loop.Check())
	}
	return errors.Join(errs...)
}
