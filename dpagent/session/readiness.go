package session

import (
	"net/netip"
	"sync"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/dpagent/serviceprobe"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Readiness stores the results of the probes of applications until they are reported. For an inbound that changes
// often, only the last state is reported. It is safe for concurrent use.
type Readiness struct {
	wake run.Signal // set when a report is due

	mu      sync.Mutex
	known   map[netip.AddrPort]serviceprobe.State
	pending map[netip.AddrPort]struct{} // the inbounds of known that this session has not reported
}

var _ serviceprobe.Reporter = (*Readiness)(nil)

// NewReadiness returns a Readiness without inbounds.
func NewReadiness() *Readiness {
	return &Readiness{
		wake: run.NewSignal(), known: map[netip.AddrPort]serviceprobe.State{}, pending: map[netip.AddrPort]struct{}{},
	}
}

// Report returns the report of readiness, sent at most twice a second.
func (r *Readiness) Report() Report {
	return Report{Feature: agentv1.FeatureServiceProbes, Due: r.wake, Interval: 500 * time.Millisecond, Begin: r.All,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Readiness{Readiness: r.take()}}
		}}
}

// Set implements serviceprobe.Reporter.
func (r *Readiness) Set(inbound netip.AddrPort, s serviceprobe.State) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.known[inbound] = s
	r.pending[inbound] = struct{}{}
	r.wake.Set()
}

// Forget implements serviceprobe.Reporter.
func (r *Readiness) Forget(inbound netip.AddrPort) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.known, inbound)
	delete(r.pending, inbound)
}

// Of returns the last result of an inbound's probe, and false without a result.
func (r *Readiness) Of(inbound netip.AddrPort) (serviceprobe.State, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s, ok := r.known[inbound]
	return s, ok
}

// All makes everything due, since the control plane may be another one, or may have lost earlier reports.
func (r *Readiness) All() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for inbound := range r.known {
		r.pending[inbound] = struct{}{}
		r.wake.Set()
	}
}

// take returns the next report.
func (r *Readiness) take() *agentv1.Readiness {
	r.mu.Lock()
	defer r.mu.Unlock()
	report := &agentv1.Readiness{}
	for inbound := range r.pending {
		if len(report.GetInbounds()) == agentv1.MaxReported {
			r.wake.Set()
			break
		}
		state := r.known[inbound]
		report.Inbounds = append(report.Inbounds, &agentv1.InboundReadiness{
			Inbound: inbound.String(), Ready: state.Ready, NoVerdict: state.NoVerdict, Reason: state.Reason,
		})
		delete(r.pending, inbound)
	}
	return report
}
