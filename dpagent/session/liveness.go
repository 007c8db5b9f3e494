package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// livenessInterval is the least time between two reports of guarded liveness probes: the first change goes out at once.
const livenessInterval = time.Second

// Liveness has the guarded liveness probes. *held.Liveness implements it.
type Liveness interface {
	// Due receives when there is something to report.
	Due() <-chan struct{}
	Report() *agentv1.Liveness
	// Told takes what the control plane says, nil from one that is too old to say it. It returns at once.
	Told(*agentv1.Restarts)
	// Connected tells whether there is a session.
	Connected(is bool)
}

func (s *Session) setConnected(is bool) {
	if s.o.Liveness != nil {
		s.o.Liveness.Connected(is)
	}
	if is {
		s.connected.Set(1)
	} else {
		s.connected.Set(0)
	}
}

// livenessPace says when to report guarded liveness probes: never, if there are none.
func (s *Session) livenessPace(over chan<- *pace) *pace {
	if s.o.Liveness == nil {
		return newPace(nil, livenessInterval, over)
	}
	return newPace(s.o.Liveness.Due(), livenessInterval, over)
}

func (s *Session) toldRestarts(m *agentv1.Restarts) {
	if s.o.Liveness != nil {
		s.o.Liveness.Told(m)
	}
}
