package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Refusals has the calls that Envoy refuses. *refused.Counter implements it.
type Refusals interface {
	// Due is set when a report is due.
	Due() run.Signal
	// Begin makes a report due unless it would be empty, since the control plane may have no state of this agent.
	Begin()
	Report() *agentv1.Refusals
}

// RefusalsReport returns the report of refused calls, sent at most once a minute.
func RefusalsReport(r Refusals) Report {
	return Report{
		Feature: agentv1.FeatureRefusals, Due: r.Due(), Interval: time.Minute, Begin: r.Begin,
		Message: func() *agentv1.AgentMessage {
			return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Refusals{Refusals: r.Report()}}
		},
	}
}
