// Package session keeps the agents' sessions, one per proxy: the agent reports its state in it, and receives the state
// that it needs. Queries to Envoys use sessions, too.
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

// Options of Sessions. All are required but ServingCA, ProbeFailed, CallsRefused, Restarts, Frozen, Registerer and
// Limits.
type Options struct {
	Authority *identity.Authority
	// Observed gets what agents report.
	Observed *observed.State
	// Replica is the name of this replica, "" for a single one. Peers are the other replicas; may be nil.
	Replica string
	Peers   *replicas.Peers
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// ServingCA returns the CAs with which agents verify the control plane. Default: agents get no CAs.
	ServingCA func() identity.Bundle
	// Reported is called when a proxy of a mesh has reported its bundle and leaf, so that a rotation may advance.
	Reported func(ctx context.Context, meshName string)
	// Duplicate is called for processes that are denied a session because another process has it.
	Duplicate func(ctx context.Context, who identity.Subject, process string, err error)
	// Opened is called for each process that got the session of a proxy, Ended when a session has ended without a
	// successor, unless the agent moves. They must return at once, and must not call the Sessions.
	Opened func(proxy mesh.ID, process string)
	Ended  func(proxy mesh.ID, at time.Time)
	// ProbeFailed is called for failed probes, with the proxy whose agent answered them. It gets the agent's texts, cut.
	// It must return at once.
	ProbeFailed func(identity.Subject, *agentv1.ProbeFailure)
	// CallsRefused is called for calls that an Envoy refuses, once per cause and session. It must return at once.
	CallsRefused func(identity.Subject, *agentv1.Refusal)
	// Restarts decides about restarts. Default: it grants none, and agents pass failures to the kubelet.
	Restarts Restarts
	// Frozen reports whether to ignore that proxies are disconnected. Default: false.
	Frozen func() bool
	// Version of the control plane, for agents.
	Version    string
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
	Limits     Limits
}

// Limits of sessions.
type Limits struct {
	// Sessions is the maximum of open sessions.
	Sessions int
	// Hello is how long a session may take to send its first message.
	Hello time.Duration
	// SilentAfter is how long a proxy must be disconnected before a forced rotation skips it, and it is shown as lost. An
	// agent retries within 10 s, and an attempt takes up to 10 s. The start of the control plane counts as the end of a
	// session.
	SilentAfter time.Duration
	// Answer bounds Envoy's answer to a query, in bytes: more than the configuration of the largest proxies.
	Answer int
}

// DefaultLimits returns the limits of a control plane.
func DefaultLimits() Limits {
	return Limits{Sessions: 10_000, Hello: 10 * time.Second, SilentAfter: 30 * time.Second, Answer: 64 << 20}
}

// Sessions has the sessions with this replica. Its methods also take the sessions with other replicas into account, as
// for connected and lost proxies.
type Sessions struct {
	o       Options
	metrics *metrics
	// started counts as the end of the sessions of an earlier process.
	started time.Time
	// stopping is closed by Stop; running counts the goroutines of sessions.
	stopping chan struct{}
	running  sync.WaitGroup

	mu      sync.Mutex
	stopped bool
	// sessions are the open ones, by proxy. Shared with other replicas.
	sessions map[mesh.ID]*session
	// ended are the last sessions of proxies without a session with this replica. Shared with other replicas.
	ended   map[mesh.ID]endedSession
	queries map[string]*query // queries with a waiting caller, by ID; local to this replica
	// publishing counts, for each proxy, the changes of its endpoints that other proxies with a stream to this replica
	// lack. Other replicas wait for them, see replicas.Peers.Behind.
	publishing map[mesh.ID]int
}

// New returns Sessions without open sessions.
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
