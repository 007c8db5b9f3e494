package envoytest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/envoy"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// Process is an Envoy in memory. It serves its admin interface, and is ready at once.
type Process struct {
	// Command is its command line.
	Command envoy.Command

	pid     int
	output  *io.PipeWriter
	ended   chan struct{}
	servers []*http.Server
	serving sync.WaitGroup

	mu       sync.Mutex
	why      error // why the process ended; nil while it runs
	state    State
	goesOn   chan struct{} // closed when state is no longer Hung
	silent   bool          // the process has no sockets
	switches int           // how often the main thread has run
	gauges   string
	refused  map[string]string
	posts    []string
}

var _ envoy.Process = (*Process)(nil)

func newProcess(pid int, c envoy.Command) *Process {
	output, in := io.Pipe()
	p := &Process{Command: c, pid: pid, output: in, ended: make(chan struct{}), goesOn: make(chan struct{}),
		refused: map[string]string{}}
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		c.Forward(output)
	}()
	p.serving.Go(func() { <-forwarded })
	return p
}

// Print writes a line to the log.
func (p *Process) Print(line string) { _, _ = io.WriteString(p.output, line+"\n") } // an ended Envoy has no reader

// Exit ends the process. why is the reason, as from cmd.Wait.
func (p *Process) Exit(why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.why != nil {
		return
	}
	p.why = errors.New(why)
	servers := p.servers
	go func() {
		_ = p.output.Close()
		for _, s := range servers {
			_ = s.Close()
		}
		p.serving.Wait()
		close(p.ended)
	}()
}

// State is the behaviour of a process.
type State struct {
	// Hung means that the process neither answers nor reacts to SIGTERM.
	Hung bool
	// Still means that the main thread never runs, Busy that it always runs. Default: it runs now and then.
	Still, Busy bool
	// Undead means that the process does not react to SIGKILL either, as when waiting for its disk.
	Undead bool
}

// Stopped is the state after SIGSTOP.
var Stopped = State{Hung: true, Still: true}

// SetState replaces the state. Requests to a hung process are answered once it is no longer hung.
func (p *Process) SetState(s State) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.state.Hung {
		close(p.goesOn)
	}
	p.state, p.goesOn = s, make(chan struct{})
}

// SetSilent makes the process open no sockets. It is for Launcher.Begin.
func (p *Process) SetSilent() { p.silent = true }

// SetGauges replaces the gauges of open work, one per line.
func (p *Process) SetGauges(lines string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gauges = lines
}

// Refuse makes the admin interface reject POST requests of a path with an error.
func (p *Process) Refuse(path, why string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refused[path] = why
}

// Posts returns the POST requests so far.
func (p *Process) Posts() []string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return append([]string{}, p.posts...)
}

// PID implements envoy.Process.
func (p *Process) PID() int { return p.pid }

// Activity implements envoy.Process.
func (p *Process) Activity() (envoy.Activity, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.state.Still {
		p.switches++
	}
	return envoy.Activity{Busy: p.state.Busy, Switches: strconv.Itoa(p.switches)}, p.why == nil
}

// Signal implements envoy.Process. A hung process ignores SIGTERM.
func (p *Process) Signal(s syscall.Signal) error {
	p.mu.Lock()
	deaf := p.state.Hung && (s != syscall.SIGKILL || p.state.Undead)
	p.mu.Unlock()
	switch {
	case deaf:
	case s == syscall.SIGTERM:
		p.Exit("process ended")
	default:
		p.Exit("signal: " + s.String())
	}
	return nil
}

// Ended implements envoy.Process.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Err implements envoy.Process.
func (p *Process) Err() error {
	<-p.ended
	return p.why
}

// serve opens the sockets of the process.
func (p *Process) serve(n *virtual.Network) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.silent || p.why != nil {
		return nil
	}
	for name, handler := range map[string]http.HandlerFunc{mesh.SocketAdmin: p.serveAdmin,
		mesh.SocketReady: p.serveReady} {
		l, err := n.Listen(context.Background(), "unix", filepath.Join(p.Command.Dir, name))
		if err != nil {
			return fmt.Errorf("launch envoy: %w", err)
		}
		server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Minute}
		p.servers = append(p.servers, server)
		p.serving.Go(func() { _ = server.Serve(l) }) // returns an error when closed
	}
	return nil
}

// answers waits while the process hangs, and returns false if the client has disconnected.
func (p *Process) answers(r *http.Request) bool {
	p.mu.Lock()
	hung, goesOn := p.state.Hung, p.goesOn
	p.mu.Unlock()
	if !hung {
		return true
	}
	select {
	case <-goesOn:
		return true
	case <-r.Context().Done():
		return false
	}
}

func (p *Process) serveReady(w http.ResponseWriter, r *http.Request) {
	if p.answers(r) && r.URL.Path != mesh.PathEnvoyReady {
		http.NotFound(w, r)
	}
}

func (p *Process) serveAdmin(w http.ResponseWriter, r *http.Request) {
	if !p.answers(r) {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case r.Method == http.MethodPost:
		p.posts = append(p.posts, r.URL.String())
		if why, ok := p.refused[r.URL.Path]; ok {
			http.Error(w, why, http.StatusServiceUnavailable)
		}
	case r.URL.Path == "/stats" && strings.Contains(r.URL.RawQuery, "downstream_"): // as requested by a drain
		_, _ = io.WriteString(w, p.gauges)
	case r.URL.Path == "/stats/prometheus":
		_, _ = io.WriteString(w, "# TYPE envoy_server_live gauge\nenvoy_server_live{} 1\n")
	}
}
