package session

import (
	"strings"
	"sync"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// EnvoyState has why Envoy does not run, until it is reported. It is safe for concurrent use.
type EnvoyState struct {
	wake chan struct{} // there is something to report

	mu   sync.Mutex
	down string
}

// NewEnvoyState returns an EnvoyState of an Envoy that runs, or was not started yet.
func NewEnvoyState() *EnvoyState { return &EnvoyState{wake: make(chan struct{}, 1)} }

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
		wake(e.wake)
	}
}

// all makes it be reported if Envoy does not run: a new session takes it to run.
func (e *EnvoyState) all() {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.down != "" {
		wake(e.wake)
	}
}

// take returns what is to be reported next.
func (e *EnvoyState) take() *agentv1.EnvoyState {
	e.mu.Lock()
	defer e.mu.Unlock()
	return &agentv1.EnvoyState{Down: e.down}
}
