package lists

import (
	"context"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// Once returns Answers for one reading of all lists by one goroutine. It asks for streams and for states of agents
// once, and does not encode objects again that the reading before has; before may be nil.
func (a *Answers) Once(before *Answers) *Answers {
	once := *a
	var asked bool
	var streams map[mesh.ID][]*adminv1.Stream
	var missing []string
	once.Streams = func(ctx context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
		if !asked {
			asked = true
			began := time.Now()
			streams, missing = a.Streams(ctx)
			once.waited = time.Since(began)
		}
		return streams, missing
	}
	once.Agents = &statesOnce{reports: a.Agents}
	once.encoded = &encoded{now: map[mesh.Object][]byte{}}
	if before != nil {
		once.encoded.before = before.encoded.now
	}
	return &once
}

// Waited returns how long Answers of Once have waited for other replicas.
func (a *Answers) Waited() time.Duration { return a.waited }

// reports is the name of Agents in statesOnce, which has a method Agents.
type reports = Agents

// statesOnce are Agents that determine their states once.
type statesOnce struct {
	reports
	states map[mesh.ID]*adminv1.AgentState
}

// States implements Agents.
func (s *statesOnce) States() map[mesh.ID]*adminv1.AgentState {
	if s.states == nil {
		s.states = s.reports.States()
	}
	return s.states
}

// encoded has the JSON of objects, which do not change.
type encoded struct{ before, now map[mesh.Object][]byte }

// object is the function object with the encoded objects of the previous reading.
func (a *Answers) object(o mesh.Object) ([]byte, error) {
	if a.encoded == nil {
		return object(o)
	}
	body, known := a.encoded.before[o]
	if !known {
		var err error
		if body, err = object(o); err != nil {
			return nil, err
		}
	}
	a.encoded.now[o] = body
	return body, nil
}
