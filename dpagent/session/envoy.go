package session

import (
	"strings"
	"sync"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/run"
)

// EnvoyState has why Envoy does not run, until it is reported. It is safe for concurrent use.
type EnvoyState struct {
	wake run.Signal // there is something to report

	mu   sync.Mutex
	down string
}

// NewEnvoyState returns an EnvoyState of an Envoy that runs, or was not started yet.
func NewEnvoyState() *EnvoyState { return &EnvoyState{wake: run.NewSignal()} }

// Set replaces why Envoy does not run, nil if it does. It returns at once.
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

// Report reports it. Envoy is started with pauses, so that it needs none of its own.
func (e *EnvoyState) Report() Report {
	return Report{Feature: agentv1.FeatureEnvoyState, Due: e.wake, Begin: e.all, Message: func() *agentv1.AgentMessage {
		return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_EnvoyState{EnvoyState: e.take()}}
	}}
}

// all makes it be reported if Envoy does not run: a new session takes it to run.
func (e *EnvoyState) all() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != "" {
		e.wake.Set()
	}
}

// take returns what is to be reported next.
func (e *EnvoyState) take() *agentv1.EnvoyState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &agentv1.EnvoyState{Down: e.down}
}
