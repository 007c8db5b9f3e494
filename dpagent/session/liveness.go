package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Liveness has which guarded liveness probes fail. *held.Liveness implements it.
type Liveness interface {
	// Due is set when there is something to report, and when a session is open: the control plane may be another one than before.
	Due() run.Signal
	Report() *agentv1.Liveness
}

// LivenessReport reports guarded liveness probes, at most once in a second.
func LivenessReport(l Liveness) Report {
	return Report{Feature: agentv1.FeatureRestartGrants, Due: l.Due(), Interval: time.Second, Message: func() *agentv1.AgentMessage {
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: l.Report()}}
	}}
}
