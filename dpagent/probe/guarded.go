package probe

import (
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Guarded decides which failures of guarded liveness probes the kubelet sees. *held.Liveness implements it.
type Guarded interface {
	Passed(p mesh.Probe)
	// Failed reports whether to keep the failure from the kubelet: because it is held back, or because the user's
	// failureThreshold is not reached yet.
	Failed(p mesh.Probe, reason string) (kept bool)
}

// heldTime is how long a held failure answers all requests: the kubelet probes three times within milliseconds after
// Errored (maxProbeRetries in pkg/kubelet/prober/prober.go).
const heldTime = 500 * time.Millisecond

// heldBack is a failure that is kept from the kubelet.
type heldBack struct {
	result result
	at     time.Time
}

// guard returns the result for the kubelet. For a held failure it is Errored, which the kubelet discards; heldAs may
// turn it into a warning. A result that does not count changes nothing. Its failure is held back too, since the caller
// may be the kubelet after an upgrade.
func (e *entry) guard(by rules, r result, counts bool) result {
	if !e.probe.Guarded || e.h.o.Guarded == nil {
		return r
	}
	switch r.verdict {
	case success, warning:
		if counts {
			e.h.o.Guarded.Passed(e.probe)
		}
	case failure:
		if !counts || e.h.o.Guarded.Failed(e.probe, r.reason) {
			r = result{verdict: errored, class: Held, reason: "not a reason to restart yet: " + r.reason}
			e.mu.Lock()
			defer e.mu.Unlock()
			e.lane(by).held = heldBack{r, time.Now()}
		}
	}
	return r
}

// heldAnswer returns the last held failure, and false if that is long ago.
func (e *entry) heldAnswer(by rules) (result, bool) {
	if !e.probe.Guarded {
		return result{}, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	held := e.lane(by).held
	return held.result, !held.at.IsZero() && time.Since(held.at) < heldTime
}
