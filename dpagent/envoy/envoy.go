// Package envoy runs the Envoy process: starts it, starts it again when it ends, forwards its log, stops it, and speaks
// to its admin interface.
package envoy

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

const (
	// stableAfter is how long Envoy has to run for the next restart to come at once again.
	stableAfter = time.Minute
	// stopTime is what Envoy has to end after SIGTERM; it needs some 10 ms.
	stopTime = 2 * time.Second
)

// Options of one Envoy.
type Options struct {
	// Path of the binary. Required.
	Path string
	// Dir is where Envoy runs: the bootstrap and both secrets lie in it before Run. Required.
	Dir *workdir.Dir
	// Restore is called before Envoy is started again, to put both secrets in place. Required.
	Restore func() error
	// Concurrency is the number of worker threads. Default 2.
	Concurrency int
	// DrainTime is Envoy's own, at least 1s. Default 25s.
	DrainTime time.Duration
	// Logger takes Envoy's log too. Required.
	Logger *slog.Logger
	// Level of the agent. Envoy itself logs warnings, or what is more severe; at debug level it informs.
	Level slog.Level
	// Registerer of the metrics. Required.
	Registerer prometheus.Registerer
}

// Envoy is one Envoy, which Run keeps alive.
type Envoy struct {
	o     Options
	admin *http.Client
	ready *http.Client

	starts  prometheus.Counter
	running prometheus.Gauge

	mu   sync.Mutex
	down error // why it does not run, nil while it does
}

// New makes an Envoy that does not run yet.
func New(o Options) *Envoy {
	if o.Concurrency <= 0 {
		o.Concurrency = 2
	}
	if o.DrainTime <= 0 {
		o.DrainTime = 25 * time.Second
	}
	e := &Envoy{
		o:     o,
		admin: newClient(o.Dir.Socket(workdir.AdminSocket)),
		ready: newClient(o.Dir.Socket(workdir.ReadySocket)),
		starts: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sonde_dpagent_envoy_starts_total", Help: "How often Envoy was started.",
		}),
		running: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sonde_dpagent_envoy_running", Help: "1 while the Envoy process runs.",
		}),
		down: errors.New("it was not started yet"),
	}
	o.Registerer.MustRegister(e.starts, e.running)
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
		"--drain-time-s", strconv.Itoa(max(1, int(e.o.DrainTime.Round(time.Second)/time.Second))),
		"--log-level", level,
		"--log-format", logFormat, "--log-format-escaped",
	}
}

// Run keeps Envoy running until ctx ends; then it stops it and waits for its end.
func (e *Envoy) Run(ctx context.Context) error {
	var backoff retry.Backoff
	for {
		started := time.Now()
		err := e.once(ctx)
		if ctx.Err() != nil {
			e.setDown(errors.New("it was stopped"))
			return nil //nolint:nilerr // it ended because it was told to
		}
		e.setDown(err)
		if time.Since(started) >= stableAfter {
			backoff.Reset()
		}
		delay := backoff.Next()
		e.o.Logger.Error("envoy ended, it will be started again", "err", err, "in", delay.String())
		if retry.Wait(ctx, delay) != nil {
			return nil //nolint:nilerr // told to end while Envoy was down
		}
		if err := e.o.Restore(); err != nil {
			e.o.Logger.Error("secrets not put in place again, envoy starts with what is there", "err", err)
		}
	}
}

// once runs one process from start to end, and returns why it ended.
func (e *Envoy) once(ctx context.Context) error {
	log := newForwarder(e.o.Logger)
	p, err := start(e.o.Path, e.args(), e.o.Dir.Path, log)
	if err != nil {
		return err
	}
	e.starts.Inc()
	e.running.Set(1)
	defer e.running.Set(0)
	e.setDown(nil)
	e.o.Logger.Info("envoy started", "pid", p.cmd.Process.Pid)
	select {
	case <-p.ended:
	case <-ctx.Done():
		p.stop(stopTime)
	}
	if log.last != "" {
		return fmt.Errorf("run envoy: %w; its last error: %s", p.err(), log.last)
	}
	return fmt.Errorf("run envoy: %w", p.err())
}

func (e *Envoy) setDown(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.down = err
}

// Running returns why the process does not run, nil if it does.
func (e *Envoy) Running() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.down
}

// Ready returns nil while Envoy serves what the control plane gave it: its readiness listener comes with the rest.
func (e *Envoy) Ready(ctx context.Context) error {
	if err := e.Running(); err != nil {
		return err
	}
	if _, err := fetch(ctx, e.ready, http.MethodGet, "/ready"); err != nil {
		return fmt.Errorf("ask the readiness listener: %w", err)
	}
	return nil
}
