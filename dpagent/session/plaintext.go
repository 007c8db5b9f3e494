package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Plaintext has what STRICT would refuse. *plaintext.Counter implements it.
type Plaintext interface {
	// Due is set when there is something to report.
	Due() run.Signal
	// All sets Due, also if nothing was counted: the control plane may be another one than before.
	All()
	Report() *agentv1.Plaintext
}

// PlaintextReport reports what STRICT would refuse, at most once in a minute, and when the drain begins: it is to be known when the agent is gone.
func PlaintextReport(p Plaintext) Report {
	return Report{
		Feature: agentv1.FeaturePlaintext, Due: p.Due(), Interval: time.Minute, AtDrain: true, Begin: p.All,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: p.Report()}}
		},
	}
}
