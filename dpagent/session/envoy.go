package session

import (
	"strings"
	"sync"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/run"
)

// EnvoyState stores why Envoy does not run, until that is reported. It is safe for concurrent use.
type EnvoyState struct {
	wake run.Signal // set when a report is due

	mu   sync.Mutex
	down string
}

// NewEnvoyState returns the state of an Envoy that runs or was not started yet.
func NewEnvoyState() *EnvoyState { return &EnvoyState{wake: run.NewSignal()} }

// Set stores why Envoy does not run; nil means that it runs. It returns at once.
func (e *EnvoyState) Set(down error) {
	text := ""
	if down != nil {
		text = cut.Text(strings.Join(strings.Fields(down.Error()), " "), agentv1.MaxReason)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != text {
		e.down = text
		e.wake.Set()
	}
}

// Report returns the report of this state. Envoy's restarts are spaced, so the report needs no minimum interval.
func (e *EnvoyState) Report() Report {
	return Report{Feature: agentv1.FeatureEnvoyState, Due: e.wake, Begin: e.all, Message: func() *agentv1.AgentMessage {
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_EnvoyState{EnvoyState: e.take()}}
	}}
}

// all makes a report due if Envoy does not run, since a new session assumes that Envoy runs.
func (e *EnvoyState) all() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != "" {
		e.wake.Set()
	}
}

// take returns the next report.
func (e *EnvoyState) take() *agentv1.EnvoyState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &agentv1.EnvoyState{Down: e.down}
}
