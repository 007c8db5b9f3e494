// Package envoy runs the Envoy process: it starts, restarts and stops Envoy, forwards its log, and calls its admin
// interface.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// stableAfter is how long Envoy has to run before the restart delay returns to its minimum.
	stableAfter = time.Minute
	// stopTimeout is how long Envoy may take to end after SIGTERM, before it is killed. It usually takes 10 ms.
	stopTimeout = 2 * time.Second
)

// Options of an Envoy.
type Options struct {
	// Path of the binary. Required.
	Path string
	// Dir is the directory in which Envoy runs. It must hold the bootstrap and both secrets before Run is called.
	// Required.
	Dir *workdir.Dir
	// Restore rewrites both secrets. It is called before each restart. Required.
	Restore func() error
	// Concurrency is the number of worker threads. Default 2.
	Concurrency int
	// DrainTime is Envoy's --drain-time-s, at least 1s. Default 25s.
	DrainTime time.Duration
	// Logger also receives Envoy's log. Required.
	Logger *slog.Logger
	// Level of the agent's log. Envoy's log level is info if Level is debug, error if Level is error, and warning
	// otherwise.
	Level slog.Level
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
	// Keep lets Envoy outlive this process if this process is the worker of a guard: the guard's next worker can Adopt
	// Envoy. Default: Envoy is killed when this process dies.
	Keep bool
	// Changed is called with the reason when Envoy ends or cannot be started, and with nil once a newly started Envoy
	// answers. It must return at once. Default: no call.
	Changed func(down error)
	// HangLimit is how long a running Envoy may not answer before it is killed, and how long Envoy may be down before
	// Alive fails. Default DefaultHangLimit.
	HangLimit time.Duration
	// Launcher runs the binary, unless Keep is set. Default: ProcessLauncher.
	Launcher Launcher
	// Dial connects to Envoy's sockets in Dir. Default: net.Dialer.DialContext.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Envoy is an Envoy process that Run keeps running.
type Envoy struct {
	*Admin
	o     Options
	ready *http.Client

	starts, hangs prometheus.Counter
	running       prometheus.Gauge

	adopted *instance // the process that Run begins with, or nil

	mu    sync.Mutex
	down  error // why the process is not running, nil while it is
	ended error // why the last process ended or failed to start; nil once the next one has answered
	alive alive
}

// instance is a process and its log.
type instance struct {
	Process
	log *forwarder
}

// WholeSeconds returns the drain time that Envoy uses for d: whole seconds, at least one.
func WholeSeconds(d time.Duration) time.Duration { return max(time.Second, d.Round(time.Second)) }

// New returns an Envoy that is not running yet.
func New(o Options) *Envoy {
	if o.Concurrency <= 0 {
		o.Concurrency = 2
	}
	if o.DrainTime <= 0 {
		o.DrainTime = mesh.DefaultDrainTime
	}
	if o.HangLimit <= 0 {
		o.HangLimit = DefaultHangLimit
	}
	if o.Launcher == nil {
		o.Launcher = ProcessLauncher{}
	}
	if o.Changed == nil {
		o.Changed = func(error) {}
	}
	e := &Envoy{
		Admin: &Admin{newClient(o.Dir.Socket(mesh.SocketAdmin), o.Dial)},
		o:     o,
		ready: newClient(o.Dir.Socket(mesh.SocketReady), o.Dial),
		starts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_starts_total", Help: "Number of starts of Envoy.",
		}),
		hangs: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_hangs_total", Help: "Number of times that Envoy was killed because it did not answer.",
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_dpagent_envoy_running", Help: "1 while the Envoy process runs.",
		}),
		down: errors.New("not started yet"),
	}
	o.Registerer.MustRegister(e.starts, e.hangs, e.running)
	return e
}

func (e *Envoy) args() []string {
	level := "warning"
	switch {
	case e.o.Level < slog.LevelInfo:
		level = "info"
	case e.o.Level > slog.LevelWarn:
		level = "error"
	}
	return []string{
		"-c", workdir.Bootstrap,
		"--disable-hot-restart",
		"--concurrency", strconv.Itoa(e.o.Concurrency),
		// Each response closes its connection from the start of the drain. By default only 4 % do after the first second of
		// 25, and clients then use the other connections after the application has exited.
		"--drain-strategy", "immediate",
		"--drain-time-s", strconv.Itoa(int(WholeSeconds(e.o.DrainTime) / time.Second)),
		"--log-level", level,
		"--log-format", logFormat, "--log-format-escaped",
	}
}

// Run keeps Envoy running until ctx ends. Then it stops Envoy and returns when the process has ended. Before each start
// it calls starting with Envoy's version, since the binary may have been replaced.
func (e *Envoy) Run(ctx context.Context, starting func(version string)) error {
	var backoff retry.Backoff
	for {
		started := time.Now()
		err := e.runOnce(ctx, starting)
		if ctx.Err() != nil {
			e.setDown(errors.New("stopped"))
			return nil //nolint:nilerr // Envoy ended because ctx did
		}
		e.setDown(err)
		e.setEnded(err)
		if time.Since(started) >= stableAfter {
			backoff.Reset()
		}
		delay := backoff.Next()
		e.o.Logger.Error("envoy exited, restarting it", "err", err, "pause", delay)
		if run.Sleep(ctx, delay) != nil {
			return nil //nolint:nilerr // ctx ended while Envoy was down
		}
		if err := e.o.Restore(); err != nil {
			e.o.Logger.Error("failed to restore secrets, envoy starts with the secrets on disk", "err", err)
		}
	}
}

// runOnce runs the adopted Envoy, or starts one, and returns why it ended.
func (e *Envoy) runOnce(ctx context.Context, starting func(version string)) error {
	p, err := e.next(ctx, starting)
	if err != nil {
		return err
	}
	e.running.Set(1)
	defer e.running.Set(0)
	e.setDown(nil)
	if why := e.supervise(ctx, p); why != nil {
		return fmt.Errorf("envoy hung and was killed: %w", why)
	}
	ended := p.Err()
	if last := p.log.lastError(); last != "" {
		return fmt.Errorf("run envoy: %w; last error in its log: %s", ended, last)
	}
	return fmt.Errorf("run envoy: %w", ended)
}

// supervise waits until a process has ended. It kills a process that hangs, and stops the process if ctx ends. It
// returns why the process hung.
func (e *Envoy) supervise(ctx context.Context, p Process) (hung error) {
	watching, unwatch := context.WithCancel(ctx)
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		hung = e.watch(watching, p)
	}()
	select {
	case <-p.Ended():
	case <-ctx.Done():
	case <-watched:
	}
	unwatch()
	<-watched
	switch {
	case ctx.Err() != nil:
		stop(p, stopTimeout)
		return nil
	case hung != nil:
		e.hangs.Inc()
		e.o.Logger.Error("envoy hangs, killing it", "pid", p.PID(), "err", hung)
		stop(p, 0)
	}
	return hung
}

// next returns the adopted Envoy, or starts one.
func (e *Envoy) next(ctx context.Context, starting func(version string)) (*instance, error) {
	if p := e.adopted; p != nil {
		e.adopted = nil
		return p, nil
	}
	version, err := e.o.Launcher.Version(ctx, e.o.Path)
	if err != nil {
		return nil, err
	}
	starting(version)
	log := newForwarder(e.o.Logger)
	p, err := e.start(log)
	if err != nil {
		return nil, err
	}
	e.starts.Inc()
	e.o.Logger.Info("envoy started", "pid", p.PID(), "envoyVersion", version)
	return &instance{p, log}, nil
}

func (e *Envoy) setDown(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down, e.alive = err, alive{}
	if err != nil {
		e.alive.ended = time.Now()
	}
}

// setEnded records why Envoy has ended or failed to start; nil means that Envoy answers.
func (e *Envoy) setEnded(err error) {
	e.mu.Lock()
	changed := err != nil || e.ended != nil
	e.ended = err
	e.mu.Unlock()
	if changed {
		e.o.Changed(err)
	}
}

// Running returns why the process is not running, or nil.
func (e *Envoy) Running() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

// Ready returns nil once Envoy has its listeners: the control plane sends the readiness listener together with the
// others.
func (e *Envoy) Ready(ctx context.Context) error {
	if err := e.Running(); err != nil {
		return err
	}
	_, err := fetch(ctx, e.ready, http.MethodGet, mesh.PathEnvoyReady)
	if err == nil {
		return nil
	}
	err = fmt.Errorf("ask the readiness listener: %w", err)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.ended != nil {
		return fmt.Errorf("%w; started again: %w", e.ended, err)
	}
	return err
}
