package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Liveness has the failing guarded liveness probes. *held.Liveness implements it.
type Liveness interface {
	// Due is set when a report is due, and when a session opens, since it may be with another control plane.
	Due() run.Signal
	Report() *agentv1.Liveness
}

// LivenessReport returns the report of guarded liveness probes, sent at most once a second.
func LivenessReport(l Liveness) Report {
	return Report{Feature: agentv1.FeatureRestartGrants, Due: l.Due(), Interval: time.Second,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: l.Report()}}
		}}
}
