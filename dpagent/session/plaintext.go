package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Plaintext has the counted traffic that STRICT would reject. *plaintext.Counter implements it.
type Plaintext interface {
	// Due is set when a report is due.
	Due() run.Signal
	// All sets Due, even if nothing was counted, since the session may be with another control plane.
	All()
	Report() *agentv1.Plaintext
}

// PlaintextReport returns the report of the traffic that STRICT would reject. It is sent at most once a minute, and
// when the drain begins, so that the last counts arrive before the agent exits.
func PlaintextReport(p Plaintext) Report {
	return Report{
		Feature: agentv1.FeaturePlaintext, Due: p.Due(), Interval: time.Minute, AtDrain: true, Begin: p.All,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: p.Report()}}
		},
	}
}
