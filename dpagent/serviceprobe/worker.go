package serviceprobe

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// stuckAfter is how long a check may take beyond its timeouts.
const stuckAfter = 30 * time.Second

// check probes an application. *probe.Check implements it.
type check interface {
	Ask(ctx context.Context) probe.Outcome
	End()
}

// worker runs the probe of one inbound.
// Source: kubernetes pkg/kubelet/prober/worker.go.
type worker struct {
	probe   Probe
	check   check
	server  *Server
	metrics *workerMetrics
	logger  *slog.Logger
	loop    *heartbeat.Loop

	cancel context.CancelFunc
	done   chan struct{}

	// Only the worker's goroutine uses these, until done is closed.
	state    *State    // nil before the first verdict
	since    time.Time // time of the last change of state
	passed   bool      // whether the last check passed
	inARow   uint32    // consecutive checks with the same result
	discards string    // why the last check was discarded; "" if it was not
}

// newWorker returns a worker. It starts with the state of an earlier, stopped worker of its inbound, which may be nil.
func newWorker(p Probe, s *Server, earlier *worker) *worker {
	w := &worker{
		probe: p, check: s.newCheck(p), server: s, metrics: s.metrics.of(p.Inbound),
		logger: s.o.Logger.With("inbound", p.Inbound.String(), "application", p.Application.String(),
			"probe", p.Check.HandlerName()),
		loop: heartbeat.New("service-probe "+p.Inbound.String(), maxAsked*p.Timeout+stuckAfter),
		done: make(chan struct{}), since: time.Now(),
	}
	if earlier != nil {
		w.state, w.since = earlier.state, earlier.since
	}
	return w
}

// maxAsked is how many timeouts one iteration may take, since a check without a verdict is repeated.
const maxAsked = 3

func (w *worker) start(ctx context.Context) {
	ctx, w.cancel = context.WithCancel(ctx)
	go func() {
		defer close(w.done)
		w.run(ctx)
	}()
}

// stop ends the worker and waits for it.
func (w *worker) stop() {
	w.cancel()
	<-w.done
	w.check.End()
}

// run checks at once, since the inbound may wait for the result, and then once per period. The second check comes after
// a random part of the period, so that probes that began together do not stay synchronised.
func (w *worker) run(ctx context.Context) {
	w.turn(ctx)
	next := time.NewTimer(rand.N(w.probe.Period)) //nolint:gosec // jitter, not a secret
	defer next.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-next.C:
		}
		next.Reset(w.probe.Period)
		w.turn(ctx)
	}
}

func (w *worker) turn(ctx context.Context) {
	w.loop.Begin()
	defer w.loop.End()
	found := w.check.Ask(ctx)
	if ctx.Err() == nil {
		w.judge(found)
	}
}

// judge counts a check, and changes the state after enough consecutive equal results.
func (w *worker) judge(found probe.Outcome) {
	w.metrics.count(found.Verdict)
	w.noteDiscard(found)
	if found.Discarded {
		return
	}
	if w.inARow == 0 || w.passed != found.Passed {
		w.passed, w.inARow = found.Passed, 0
	}
	w.inARow++
	if w.inARow < w.threshold(found) {
		return
	}
	now := State{Ready: found.Passed}
	if !found.Passed {
		now.Reason = probe.Lasting(found.Reason)
	}
	if w.state == nil || *w.state != now { // also report a different reason
		w.change(now, found.Took)
	}
}

// threshold returns how many consecutive checks must have this result. Before the first verdict, one failure suffices:
// no application is ready before its first success, and a previous agent may have reported an application ready that
// has exited since.
func (w *worker) threshold(found probe.Outcome) uint32 {
	switch {
	case found.Passed:
		return w.probe.SuccessThreshold
	case w.state == nil:
		return 1
	default:
		return w.probe.FailureThreshold
	}
}

// change replaces the state. took is the duration of the deciding check.
func (w *worker) change(now State, took time.Duration) {
	turned := w.state == nil || w.state.Ready != now.Ready
	lasted := time.Since(w.since).Round(time.Millisecond)
	first := w.state == nil
	w.state = &now
	w.metrics.ready(now.Ready)
	w.server.o.Reporter.Set(w.probe.Inbound, now)
	if !turned {
		return
	}
	w.since = time.Now()
	log := w.logger.With("checks", w.inARow, "took", took.Round(time.Microsecond).String())
	if !first {
		log = log.With("after", lasted.String())
	}
	if now.Ready {
		log.Info("application ready")
	} else {
		log.Warn("application not ready", "err", now.Reason)
	}
}

// noteDiscard logs once that checks reach no verdict. The previous result, if any, then stays in effect.
func (w *worker) noteDiscard(found probe.Outcome) {
	if !found.Discarded {
		w.discards = ""
		return
	}
	before := w.discards
	w.discards = probe.Lasting(found.Reason)
	if before == "" {
		w.logger.Warn("application probe reached no verdict, keeping the previous state", "err", found.Reason)
	}
	if w.state == nil && w.discards != before {
		w.server.o.Reporter.Set(w.probe.Inbound, State{NoVerdict: true, Reason: w.discards})
	}
}
