package serviceprobe

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"regexp"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/probe"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// stuckAfter is how long a check may take beyond its timeouts.
const stuckAfter = 30 * time.Second

// check asks an application. *probe.Check implements it.
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

	// The goroutine of the worker has these, until done is closed.
	state    *State    // nil before the first verdict
	since    time.Time // of state
	passed   bool      // the last check
	inARow   uint32    // checks that ended as the last one
	discards string    // why the last check was discarded, "" if it was not
}

// newWorker returns a worker that begins with the state of an earlier one for its inbound, which has stopped; nil if there is none.
func newWorker(p Probe, s *Server, earlier *worker) *worker {
	w := &worker{
		probe: p, check: s.newCheck(p), server: s, metrics: s.metrics.of(p.Inbound),
		logger: s.o.Logger.With("inbound", p.Inbound.String(), "application", p.Application.String(), "probe", p.Check.HandlerName()),
		loop:   heartbeat.New("service-probe "+p.Inbound.String(), maxAsked*p.Timeout+stuckAfter),
		done:   make(chan struct{}), since: time.Now(),
	}
	if earlier != nil {
		w.state, w.since = earlier.state, earlier.since
	}
	return w
}

// maxAsked is how many timeouts one turn may take: a check that comes to no verdict is made again.
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

// run checks at once, since the inbound may wait for it, and then once in each period. The second check comes after a random part of the
// period, so that probes that have begun together do not stay so.
func (w *worker) run(ctx context.Context) {
	w.turn(ctx)
	next := time.NewTimer(rand.N(w.probe.Period)) //nolint:gosec // it guards nothing
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

// judge counts a check, and changes the state when enough of them agree.
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
		now.Reason = lasting(found.Reason)
	}
	if w.state == nil || *w.state != now { // another reason is news, too
		w.change(now, found.Took)
	}
}

// threshold returns how many checks in a row must have found this. One failure is enough where nothing is known: no application is ready
// before its first success, and what this agent's predecessor has reported may be of an application that has ended with it.
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

// sourcePort is what differs in reasons that are the same: 127.0.0.1:40312 of "read tcp 127.0.0.1:40312->127.0.0.1:80".
var sourcePort = regexp.MustCompile(`\S+:\d+->`)

// lasting returns a reason without what is of one connection alone.
func lasting(reason string) string { return sourcePort.ReplaceAllString(reason, "") }

// change replaces the state. took is how long the check took that made it.
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

// noteDiscard logs once that checks come to no verdict: what was found before then holds. If that is nothing, the log says why.
func (w *worker) noteDiscard(found probe.Outcome) {
	if !found.Discarded {
		w.discards = ""
		return
	}
	before := w.discards
	w.discards = lasting(found.Reason)
	if before == "" {
		w.logger.Warn("application probe without a verdict, the state stays", "err", found.Reason)
	}
	if w.state == nil && w.discards != before {
		w.server.o.Reporter.Set(w.probe.Inbound, State{NoVerdict: true, Reason: w.discards})
	}
}
