// Package serviceprobe asks applications whether they can take traffic, where no kubelet does: as the written Dataplane says it,
// with the checks and by the rules of a Kubernetes readiness probe.
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

// Probe is how the application behind one inbound is asked.
type Probe struct {
	// Inbound is where the mesh reaches the application, Application where it is asked.
	Inbound, Application netip.AddrPort
	// Check has a handler, whose port is that of Application.
	Check mesh.Probe
	// Period between two checks, and Timeout of each.
	Period, Timeout time.Duration
	// FailureThreshold and SuccessThreshold are how many checks in a row change the State.
	FailureThreshold, SuccessThreshold uint32
}

// State is what the probe of an inbound has found.
type State struct {
	Ready bool
	// NoVerdict says that no check has come to a verdict, for that Reason: Ready says nothing then.
	NoVerdict bool
	// Reason why not, human-readable, at most 512 bytes and without text of the application.
	Reason string
}

// Reporter is called for each change. Its methods return at once. *session.Readiness implements it.
type Reporter interface {
	// Set replaces the State of an inbound.
	Set(inbound netip.AddrPort, s State)
	// Forget says that an inbound has no probe any more.
	Forget(inbound netip.AddrPort)
}

// Options of a Server. All are required but Loop.
type Options struct {
	Reporter Reporter
	// Logger gets each change of a State.
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	// Loop is told of each set of probes that is put in place. Default: none.
	Loop *heartbeat.Loop
}

// Server runs the probes that it was last told, none before. It is safe for concurrent use.
type Server struct {
	o       Options
	metrics *metrics
	changed run.Signal // probes may be others
	// newCheck returns what asks an application. Tests have another one.
	newCheck func(Probe) check

	mu     sync.Mutex
	probes []Probe
	loops  map[netip.AddrPort]*heartbeat.Loop
}

// New returns a server. Run has to be called.
func New(o Options) *Server {
	return &Server{
		o: o, metrics: newMetrics(o.Registerer), changed: run.NewSignal(), loops: map[netip.AddrPort]*heartbeat.Loop{},
		newCheck: func(p Probe) check { return probe.NewCheck(p.Check, p.Application.Addr(), p.Timeout, nil) },
	}
}

// Set replaces the probes, each of another inbound, and returns at once. What is equal in both goes on undisturbed.
func (s *Server) Set(probes []Probe) {
	s.mu.Lock()
	s.probes = probes
	s.mu.Unlock()
	s.changed.Set()
}

// Run probes until ctx ends.
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

// follow makes the workers those of the current probes. An inbound whose probe has changed keeps its State until the new one has found
// another: else a change of a probe would take out all replicas of a service at once.
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

// watch has Alive look after the loop of an inbound, nil if there is none any more.
func (s *Server) watch(at netip.AddrPort, loop *heartbeat.Loop) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if loop == nil {
		delete(s.loops, at)
		return
	}
	s.loops[at] = loop
}

// Alive returns which probes do not turn any more, nil if all do. What applications do is no reason.
func (s *Server) Alive(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, loop := range s.loops {
		errs = append(errs, loop.Check())
	}
	return errors.Join(errs...)
}
