package probe

import (
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Guarded decides what the kubelet is told of guarded liveness probes. *held.Liveness implements it.
type Guarded interface {
	Passed(p mesh.Probe)
	// Failed returns whether the failure is kept from the kubelet: it is held back, or it is not the last that the user's threshold needs.
	Failed(p mesh.Probe, reason string) (kept bool)
}

// heldTime is for how long a failure that is held back answers all that ask: the kubelet asks three times within milliseconds after Errored
// (maxProbeRetries in pkg/kubelet/prober/prober.go).
const heldTime = 500 * time.Millisecond

// heldBack is a failure that the kubelet is not told of.
type heldBack struct {
	result result
	at     time.Time
}

// guard returns what the kubelet is told of a check: Errored, which it discards, for a failure that is held back. It is never told that the check has passed.
func (e *entry) guard(by rules, r result) result {
	if !e.probe.Guarded || e.h.o.Guarded == nil {
		return r
	}
	switch r.verdict {
	case success, warning:
		e.h.o.Guarded.Passed(e.probe)
	case failure:
		if e.h.o.Guarded.Failed(e.probe, r.reason) {
			r = result{verdict: errored, class: Held, reason: "not a reason to restart yet: " + r.reason}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.lane(by).held = heldBack{r, time.Now()}
		}
	}
	return r
}

// heldAnswer returns the last failure that was held back, and false if that is long ago.
func (e *entry) heldAnswer(by rules) (result, bool) {
	if !e.probe.Guarded {
		return result{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	held := e.lane(by).held
	return held.result, !held.at.IsZero() && time.Since(held.at) < heldTime
}
