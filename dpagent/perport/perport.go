// Package perport answers the probes of a written Dataplane, in the per-port mode: HTTP probes on one port, and others on
// ports of their own. Those for TCP are open while those of the application are.
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

// MaxConnections is how many connections of callers may be open at once on all ports. Each port has a limit of its own, too.
const MaxConnections = 2048

// period is how often an application is asked, and how long after a failure a port or socket is opened again.
const period = time.Second

// Config is what there is to answer.
type Config struct {
	// HTTP is where HTTP probes are answered; not valid if there are none.
	HTTP netip.AddrPort
	// Paths are what a GET of each path is for. It must not be modified.
	Paths map[string]probe.Target
	// Ports for TCP and gRPC probes, each with another Address.
	Ports []Port
}

// Port is a port that is open while the application accepts connections.
type Port struct {
	// Address to listen on.
	Address netip.AddrPort
	// Application is where it listens.
	Application netip.AddrPort
	// GRPC says that calls of gRPC health checking are answered. Else the connection of a client that sends something is reset.
	GRPC bool
	// Asked is the address by which such a call reaches the application.
	Asked netip.AddrPort
	// AlwaysOpen says that the port is open whatever the application does.
	AlwaysOpen bool
}

// Options of a Server. Logger and Registerer are required.
type Options struct {
	// Logger gets changed verdicts, and what cannot be opened.
	Logger *slog.Logger
	// Registerer of the metrics of probes.
	Registerer prometheus.Registerer
	// Virtual is the address of the virtual port, whose handler answers HTTP probes there that its table does not have, by TargetAt. Default: there
	// is none.
	Virtual netip.AddrPort
	// Listen opens a port. Default: net.ListenConfig.Listen.
	Listen func(ctx context.Context, network, address string) (net.Listener, error)
	// Connections of callers that may be open at once on all ports together; as many may be open to applications. Default MaxConnections.
	Connections int
	// Dial connects to applications. Default: that of probe.Options.
	Dial probe.Dial
	// Loop is told of each Config that is put in place. Default: none.
	Loop *heartbeat.Loop
}

// Server answers probes as its last Config says, none before the first. It is safe for concurrent use.
type Server struct {
	o       Options
	changed run.Signal // config may be another one

	mu     sync.Mutex
	config Config
	faults map[task]error // what tasks cannot do
}

// New returns a server. Run has to be called.
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

// Set replaces the Config, and returns at once. What is equal in both goes on undisturbed.
func (s *Server) Set(c Config) {
	s.mu.Lock()
	s.config = c
	s.mu.Unlock()
	s.changed.Set()
}

// task is something to do until ctx ends. Its types are comparable, and equal ones are the same.
type task interface {
	run(ctx context.Context, s *Server)
	String() string
}

// running is a task that runs.
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
		stop(all, func(t task) bool { return !wanted[t] }) // first, since they may have the ports of others
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

// report records what a task cannot do, nil if there is nothing, and logs it when it changes.
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
		s.o.Logger.Warn("probes cannot be answered, the agent keeps trying", "probes", t.String(), "err", err)
	}
}

// Ready returns why probes cannot be answered, nil if they can. What applications do is no reason.
func (s *Server) Ready(context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var errs []error
	for _, t := range slices.SortedFunc(maps.Keys(s.faults), func(a, b task) int { return cmp.Compare(a.String(), b.String()) }) {
		errs = append(errs, fmt.Errorf("%s: %w", t, s.faults[t]))
	}
	return errors.Join(errs...)
}
