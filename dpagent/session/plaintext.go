package session

import (
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// plaintextInterval is the least time between two reports of what STRICT would refuse.
const plaintextInterval = time.Minute

// Plaintext has what STRICT would refuse. *plaintext.Counter implements it.
type Plaintext interface {
	// Due receives when there is something to report.
	Due() <-chan struct{}
	// All makes a report due, also if nothing was counted: the control plane may be another one than before.
	All()
	Report() *agentv1.Plaintext
}

// plaintextPace says when to report what STRICT would refuse: never, if it is not counted.
func (s *Session) plaintextPace(over chan<- *pace) *pace {
	if s.o.Plaintext == nil {
		return newPace(nil, plaintextInterval, over)
	}
	return newPace(s.o.Plaintext.Due(), plaintextInterval, over)
}

func plaintextMessage(m *agentv1.Plaintext) *agentv1.AgentMessage {
	return &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Plaintext{Plaintext: m}}
}
