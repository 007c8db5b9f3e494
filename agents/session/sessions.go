// Package session keeps the sessions of agents: one for each proxy, in which its agent reports what it uses and what it sees, and is sent
// what it should know. Queries to Envoys go through them, too.
package session

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/agents/observed"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/replicas"
)

// Options of Sessions. All are required but ServingCA, ProbeFailed, Restarts, Frozen, Registerer and Limits.
type Options struct {
	Authority *identity.Authority
	// Observed gets what agents report.
	Observed *observed.State
	// Replica is the name of this one, "" where there are none, and Peers the others, nil for none.
	Replica string
	Peers   *replicas.Peers
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// ServingCA returns the CAs by which agents are to verify the control plane. Default: agents are told none.
	ServingCA func() identity.Bundle
	// Reported is called when a proxy of a mesh has reported what it uses, so that a rotation may go on.
	Reported func(ctx context.Context, meshName string)
	// Duplicate is told of processes whose session is refused since another one has it.
	Duplicate func(ctx context.Context, who identity.Subject, process string, err error)
	// Opened is told of each process that has got the session of a proxy, Ended when one has ended and no other has followed, unless the agent moves. They must
	// return at once, and not call the Sessions.
	Opened func(proxy mesh.ID, process string)
	Ended  func(proxy mesh.ID, at time.Time)
	// ProbeFailed is told of probes that fail, with the proxy whose agent has answered them. Texts are the agent's, and
	// are cut. It must return at once.
	ProbeFailed func(identity.Subject, *agentv1.ProbeFailure)
	// Restarts says what agents are told of restarts. Default: none are granted, and agents tell the kubelet the truth.
	Restarts Restarts
	// Frozen reports whether nothing may follow from the silence of proxies. Default: something may.
	Frozen func() bool
	// Version of the control plane, to tell agents.
	Version    string
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
	Limits     Limits
}

// Limits of sessions.
type Limits struct {
	// Sessions is how many may be open at once.
	Sessions int
	// Hello is how long a session may take for its first message.
	Hello time.Duration
	// SilentAfter is how long a proxy must have no session before a forced rotation skips it, and it is shown as lost: an agent tries again
	// within 10 s, and a try takes up to 10 s. The start of the control plane counts as the end of a session.
	SilentAfter time.Duration
	// Answer limits what an Envoy says to a query, in bytes: more than the configuration of the largest proxies.
	Answer int
}

// DefaultLimits returns those of a control plane.
func DefaultLimits() Limits {
	return Limits{Sessions: 10_000, Hello: 10 * time.Second, SilentAfter: 30 * time.Second, Answer: 64 << 20}
}

// Sessions has the sessions with this replica. What it says of a proxy, such as that it is connected or lost, takes the sessions with other
// replicas into account.
type Sessions struct {
	o       Options
	metrics *metrics
	// started counts as the end of the sessions that an earlier process has had.
	started time.Time
	// stopping is closed by Stop; running counts the goroutines of sessions.
	stopping chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	// sessions are the open ones, by proxy. Other replicas are told.
	sessions map[mesh.ID]*session
	// ended are the last sessions of proxies that have none with this replica. Other replicas are told.
	ended   map[mesh.ID]endedSession
	queries map[string]*query // those whose caller waits, by ID. Alone
	// publishing counts for each proxy the changes of its endpoints that other proxies with a stream to this replica have not taken yet.
	// Other replicas wait for it, see replicas.Peers.Behind.
	publishing map[mesh.ID]int
}

// New returns Sessions without any.
func New(o Options) (*Sessions, error) {
	if o.Frozen == nil {
		o.Frozen = func() bool { return false }
	}
	s := &Sessions{
		o:          o,
		started:    o.Now(),
		stopping:   make(chan struct{}),
		sessions:   map[mesh.ID]*session{},
		queries:    map[string]*query{},
		ended:      map[mesh.ID]endedSession{},
		publishing: map[mesh.ID]int{},
	}
	var err error
	s.metrics, err = newMetrics(s, o.Registerer)
	return s, err
}

// Stop ends all sessions, and waits for their handlers.
func (s *Sessions) Stop() {
	s.mu.Lock()
	s.stopped = true
	s.mu.Unlock()
	close(s.stopping)
	s.running.Wait()
}
