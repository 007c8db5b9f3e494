package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Verdicts has the verdicts of the agent's probes. *verdicts.History implements it.
type Verdicts interface {
	// Due is set when a report is due.
	Due() run.Signal
	Report() *agentv1.Verdicts
}

// VerdictsReport returns the report of verdicts, sent at most once a second, and when a session begins.
func VerdictsReport(v Verdicts) Report {
	return Report{Feature: agentv1.FeatureVerdicts, Due: v.Due(), Interval: time.Second, Begin: v.Due().Set,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Verdicts{Verdicts: v.Report()}}
		}}
}
