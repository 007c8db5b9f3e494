package restarts

import (
	"context"
	"time"
)

// worker is what the kubelet remembers of one liveness probe.
// Source: kubernetes pkg/kubelet/prober/worker.go.
type worker struct {
	container int // restart count of the container that was probed last
	last      answer
	run       int // answers in a row that were the last one
	onHold    bool
	// excused says that the run has failures for which no grant is needed: the sidecar was not there, or it was the pod's own turn.
	excused bool
}

// probeUntil probes a container each period until ctx ends, or the pod is deleted.
func (c *container) probeUntil(ctx context.Context) {
	period := time.Duration(c.probe.PeriodSeconds) * time.Second
	if !pause(ctx, c.pod.sim.latency(period)) {
		return
	}
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	for c.probeOnce(ctx) {
		select {
		case <-ctx.Done():
			return
		case <-c.again:
			c.pod.sim.mu.Lock()
			c.worker = worker{container: -1}
			c.pod.sim.mu.Unlock()
			if !pause(ctx, c.pod.sim.latency(period)) {
				return
			}
			ticker.Reset(period)
		case <-ticker.C:
		}
	}
}

// probeOnce is doProbe, and returns whether the worker should go on.
func (c *container) probeOnce(ctx context.Context) bool {
	s, w := c.pod.sim, &c.worker
	s.mu.Lock()
	defer s.mu.Unlock()
	if w.container != c.restarts {
		w.container, w.onHold = c.restarts, false
	}
	if w.onHold || !c.running {
		return true
	}
	if !c.pod.deleted.IsZero() {
		return false
	}
	result := c.pod.check(c)
	s.Detail("%s of %s is checked: %d", c.name(), c.pod.name, result)
	s.settle(c.pod)
	if result == errored {
		return true
	}
	if w.last == result {
		w.run++
	} else {
		w.last, w.run, w.excused = result, 1, false
	}
	if result == success {
		return true
	}
	w.excused = w.excused || c.pod.sidecarDown || s.ownTurn(c.pod)
	if w.run < int(c.probe.FailureThreshold) {
		return true
	}
	excused := w.excused
	w.onHold, w.run, w.excused = true, 0, false
	s.restarts(c, excused)
	c.restart(ctx)
	return true
}

// restart ends the container, and starts another one. mu is held.
func (c *container) restart(ctx context.Context) {
	s := c.pod.sim
	c.running = false
	c.pod.update()
	c.pod.later(ctx, 100*time.Millisecond+s.latency(15*time.Second), func() {
		c.restarts++
		c.running, c.started, c.checked = true, time.Now(), false
		if f := c.broken; f != nil && f.heals > 0 {
			f.heals--
			if f.heals == 0 {
				c.broken = nil
			}
		}
		s.Note("%s of %s has started, restart %d, fails: %v", c.name(), c.pod.name, c.restarts, c.failing())
		c.pod.update()
		c.pod.later(ctx, c.readyAfter, c.pod.update)
	})
}
