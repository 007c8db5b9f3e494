package restarts

import (
	"context"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// worker is the kubelet's state of one liveness probe. Source: kubernetes
// pkg/kubelet/prober/worker.go.
type worker struct {
	container int // restart count of the container that was probed last
	last      answer
	run       int // number of consecutive results equal to the last
	onHold    bool
	// excused means that the run has failures that need no grant, because it was the pod's own turn.
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

// probeOnce is doProbe; it returns whether the worker should continue.
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
	result := c.ask(ctx)
	if !c.pod.deleted.IsZero() || ctx.Err() != nil {
		return false
	}
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
	w.excused = w.excused || s.ownTurn(c.pod)
	if w.run < int(s.kubelet(c.probe).FailureThreshold) {
		return true
	}
	excused := w.excused
	w.onHold, w.run, w.excused = true, 0, false
	s.restarts(c, excused)
	c.restart(ctx)
	return true
}

// kubelet returns the numbers of a probe that the kubelet uses.
func (s *simulation) kubelet(p mesh.Probe) webhook.Kubelet {
	if s.variant == usersNumbers {
		return webhook.Kubelet{TimeoutSeconds: p.TimeoutSeconds + 1, FailureThreshold: p.FailureThreshold}
	}
	return webhook.KubeletOf(p)
}

// unanswered is how long the kernel of a node tries to connect (net.ipv4.tcp_syn_retries = 6).
const unanswered = 127 * time.Second

// ask waits for the agent's response until the timeout. A stopped agent does not respond, without a sidecar the
// connection waits (dpagent/redirect), and an ending sidecar resets it. The caller holds mu, which ask releases while
// it waits.
func (c *container) ask(ctx context.Context) answer {
	s, p := c.pod.sim, c.pod
	timeout := time.Duration(s.kubelet(c.probe).TimeoutSeconds) * time.Second
	asked, connected, sidecar := time.Now(), !p.sidecarDown, p.sidecars
	for {
		waited := time.Since(asked)
		switch {
		case connected && sidecar != p.sidecars, waited >= timeout, !connected && waited >= unanswered:
			return failure
		case !connected && !p.sidecarDown:
			connected, sidecar = true, p.sidecars
			continue
		case connected && !p.stopped:
			return p.check(c)
		}
		s.mu.Unlock()
		ok := pause(ctx, 100*time.Millisecond)
		s.mu.Lock()
		if !ok {
			return errored
		}
	}
}

// restart ends the container, and starts another. The caller holds mu.
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
