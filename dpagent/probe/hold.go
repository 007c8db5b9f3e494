package probe

import (
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// SetHold replaces Options.Hold.
func (h *Handler) SetHold(hold mesh.LivenessHold) { h.warns.Store(hold == mesh.HoldWarning) }

// Warns reports whether held liveness probes are answered with a warning.
func (h *Handler) Warns() bool { return h.warns.Load() }

// heldAs returns the answer to a liveness probe that is held back, or that the agent cannot check: if warns, a redirect
// that the kubelet does not follow. An Errored result that the application caused stays Errored unless the probe is
// guarded, so that a kubelet that counts errored checks counts it. Readiness and startup probes are never answered with
// a warning, which would mean that they have passed.
func (r result) heldAs(p mesh.Probe, warns bool) result {
	if !warns || r.verdict != errored || p.Type != mesh.ProbeLiveness || !p.Guarded && r.class != AgentFault {
		return r
	}
	return result{verdict: warning, stopped: stoppedRedirect{location: wire.HeldLocation,
		body: []byte(wire.HeldText + r.reason)}}
}
