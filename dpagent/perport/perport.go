// Package perport answers the probes of a written Dataplane, in the per-port mode: HTTP probes on one port, and others
// on separate ports. A port for TCP probes is open while the application's port is open.
package perport

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/run"
)

// MaxConnections limits the open connections of callers on all ports. Each port has its own limit, too.
const MaxConnections = 2048

// period is how often an application is probed, and the delay before a port or socket is reopened after a failure.
const period = time.Second

// Config configures the answered probes.
type Config struct {
	// HTTP is the address for HTTP probes; invalid without HTTP probes.
	HTTP netip.AddrPort
	// Paths maps each path to the target of a GET. It must not be modified.
	Paths map[string]probe.Target
	// Ports for TCP and gRPC probes, each with a different Address.
	Ports []Port
}

// Port is a port that is open while the application accepts connections.
type Port struct {
	// Address to listen on.
	Address netip.AddrPort
	// Application is the address of the application.
	Application netip.AddrPort
	// GRPC means that the port answers gRPC health checks. Otherwise it resets the connection of a client that sends data.
	GRPC bool
	// Asked is, for GRPC, the address that the kubelet would probe without the mesh.
	Asked netip.AddrPort
	// AlwaysOpen keeps the port open whatever the state of the application.
	AlwaysOpen bool
}

// Options of a Server. Logger and Registerer are required.
type Options struct {
	// Logger gets changed verdicts, and failures to open ports.
	Logger *slog.Logger
	// Registerer of the metrics of probes.
	Registerer prometheus.Registerer
	// Virtual is the address of the virtual port. Its handler uses TargetAt to answer HTTP probes that its table lacks.
	// Default: none.
	Virtual netip.AddrPort
	// Listen opens a port. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Connections limits the open connections of callers on all ports together, and the open connections to applications.
	// Default MaxConnections.
	Connections int
	// Dial connects to applications. Default: as in probe.Options.
	Dial probe.Dial
	// Loop monitors the check of each port's application. Default: none.
	Loop *heartbeat.Loop
}

// Server answers probes according to its last Config; before the first it answers none. It is safe for concurrent use.
type Server struct {
	o       Options
	changed run.Signal // config may have changed

	mu     sync.Mutex
	config Config
	faults map[task]error // errors of tasks
}

// New returns a server. Run must be called.
func New(o Options) *Server {
	open := o.Listen
	if open == nil {
		open = (&net.ListenConfig{}).Listen
	}
	limiter := connlimit.New(cmp.Or(o.Connections, MaxConnections))
	o.Listen = func(ctx context.Context, network, address string) (net.Listener, error) {
		l, err := open(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return limiter.Listener(l), nil
	}
	return &Server{o: o, changed: run.NewSignal(), faults: map[task]error{}}
}

// Set replaces the Config, and returns at once. It does not disturb parts that are equal in both.
func (s *Server) Set(c Config) {
	s.mu.Lock()
	s.config = c
	s.mu.Unlock()
	s.changed.Set()
}

// task is work that runs until ctx ends. Its types are comparable: equal tasks are the same task.
type task interface {
	run(ctx context.Context, s *Server)
	String() string
}

// running is a running task.
type running struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// Run answers probes until ctx ends.
func (s *Server) Run(ctx context.Context) error {
	all := map[task]running{}
	for ctx.Err() == nil {
		s.o.Loop.Begin()
		wanted := s.tasks()
		stop(all, func(t task) bool { return !wanted[t] }) // stop first: these tasks may occupy ports that new tasks need
		for t := range wanted {
			if _, runs := all[t]; !runs {
				all[t] = s.start(ctx, t)
			}
		}
		s.o.Loop.End()
		select {
		case <-s.changed:
		case <-ctx.Done():
		}
	}
	stop(all, func(task) bool { return true })
	return nil
}

func (s *Server) start(ctx context.Context, t task) running {
	ctx, cancel := context.WithCancel(ctx)
	r := running{cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(r.done)
		defer s.report(t, nil)
		t.run(ctx, s)
	}()
	return r
}

// stop ends tasks, waits for them, and removes them.
func stop(all map[task]running, which func(task) bool) {
	for t, r := range all {
		if which(t) {
			r.cancel()
		}
	}
	for t, r := range all {
		if which(t) {
			<-r.done
			delete(all, t)
		}
	}
}

func (s *Server) tasks() map[task]bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := map[task]bool{}
	if s.config.HTTP.IsValid() {
		all[web{s.config.HTTP}] = true
	}
	for _, p := range s.config.Ports {
		all[p] = true
	}
	return all
}

// report records the error of a task, or nil, and logs changes.
func (s *Server) report(t task, err error) {
	s.mu.Lock()
	before := s.faults[t]
	if err == nil {
		delete(s.faults, t)
	} else {
		s.faults[t] = err
	}
	s.mu.Unlock()
	if err != nil && (before == nil || before.Error() != err.Error()) {
		s.o.Logger.Warn("failed to serve probes, retrying", "probes", t.String(), "err", err)
	}
}

// Ready returns why the server cannot answer probes, or nil. It ignores the state of applications.
func (s *Server) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, t := range slices.SortedFunc(maps.Keys(s.faults), func(a, b task) int {
		return cmp.Compare(a.String(), b.String())
	}) {
		errs = append(errs, fmt.Errorf("%s: %w", t, s.faults[t]))
	}
	return errors.Join(errs...)
}
