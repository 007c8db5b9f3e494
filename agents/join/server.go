// Package join lets proxies join, and renew their certificates.
package join

import (
	"context"
	"log/slog"
	"net/netip"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"

	"github.com/sonde-mesh/sonde/agents/call"
	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/internal/sourcelimit"
	"github.com/sonde-mesh/sonde/meshview"
)

// Authenticator returns the identity that a token proves. The error gives the reason without the token. It wraps
// identity.ErrUnavailable if the check is not possible now, and identity.ErrNotKnown if the token's proxy is unknown;
// in both cases the agent retries soon. *token.Issuer and *tokenreview.Authenticator implement it.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (identity.Subject, error)
}

// Sidecar has the settings of an agent and its Envoy from a JoinRequest.
type Sidecar struct {
	// ControlPlane is the address of the control plane as the agent reaches it, host:port.
	ControlPlane string
	// DrainTime of Envoy.
	DrainTime time.Duration
	// Memory is the limit, in bytes, that agent and Envoy share.
	Memory uint64
	// ServingCAFile says that the agent writes the control plane's CAs to a file for Envoy.
	ServingCAFile bool
	// Records says that the agent accepts Envoy's records of plaintext connections.
	Records bool
}

// Options of a Server. All are required but Version, Refused, Registerer and Limits.
type Options struct {
	// Authority issues certificates.
	Authority *identity.Authority
	// Tokens authenticates agents that join without a certificate.
	Tokens Authenticator
	// Observed records which proxies have joined.
	Observed *observed.State
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// Bootstrap returns the JSON of Envoy's bootstrap.
	Bootstrap func(p *meshview.Proxy, s Sidecar) ([]byte, error)
	// CheckDuplicate returns an error if another live process has the proxy's session.
	CheckDuplicate func(ctx context.Context, proxy mesh.ID, process, address string) error
	// Waits is called when a proxy starts or stops waiting to join. It must return at once.
	Waits func(proxy mesh.ID)
	// Version of the control plane, which decides about unsupported agents. Default: every agent is supported.
	Version string
	// Refused is called for rejected joins, rate-limited by address. It must return at once.
	Refused func(Refusal)
	// Absent returns why a proxy with a valid credential has no Dataplane, "" if the reason is unknown.
	Absent     func(identity.Subject) string
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
	Limits     Limits
}

// Limits of joins.
type Limits struct {
	// Rate is the maximum of certificates per second for one proxy, Burst the maximum at once.
	Rate  rate.Limit
	Burst int
	// TokenChecks is the maximum of concurrent token checks, TokenTimeout how long a call waits for its turn.
	TokenChecks  int
	TokenTimeout time.Duration
}

// DefaultLimits returns the limits of a control plane.
func DefaultLimits() Limits {
	return Limits{Rate: 1, Burst: 20, TokenChecks: 32, TokenTimeout: 5 * time.Second}
}

// Server serves Join and Renew of agentv1.AgentService. Each replica has limits of its own, so n replicas together
// allow n times as much.
type Server struct {
	o       Options
	metrics *metrics
	// issues limits the certificates per proxy.
	issues *limiter
	// tokens queues token checks, and shares its places among addresses.
	tokens *connlimit.Places[netip.Prefix]
	// refusals limits, by address, the calls of Options.Refused for agents without a valid token.
	refusals *sourcelimit.Limiter
	// waiting has the proxies that failed to join at this replica. Other replicas learn of them.
	waiting *waiting
}

// New returns a Server.
func New(o Options) (*Server, error) {
	m, err := newMetrics(o.Registerer)
	if err != nil {
		return nil, err
	}
	return &Server{
		o:        o,
		metrics:  m,
		issues:   newLimiter(o.Limits.Rate, o.Limits.Burst),
		tokens:   connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: o.Limits.TokenChecks}),
		refusals: sourcelimit.New(1, 10),
		waiting:  &waiting{proxies: map[mesh.ID]Wait{}},
	}, nil
}

// Sweep forgets callers and waiting proxies that have stopped calling.
func (s *Server) Sweep() {
	s.issues.sweep()
	for _, id := range s.waiting.forget(s.o.Now()) {
		s.o.Waits(id)
	}
}

// Joined records that a process of a proxy no longer waits, because it has joined or has a session, with any replica.
// process is "" if it is unknown.
func (s *Server) Joined(id mesh.ID, process string) {
	if s.waiting.remove(id, process) {
		s.o.Waits(id)
	}
}

// Ended records that the session of a proxy ended at that time, with any replica.
func (s *Server) Ended(id mesh.ID, at time.Time) {
	if s.waiting.ended(id, at) {
		s.o.Waits(id)
	}
}

// Wait returns since when and why a proxy waits to join, and false if it does not wait.
func (s *Server) Wait(id mesh.ID) (Wait, bool) { return s.waiting.of(id) }

// Waiting returns the proxies whose agents have a valid credential but fail to join.
func (s *Server) Waiting() map[mesh.ID]Wait { return s.waiting.all() }

// Duplicate records and logs that a second process with a proxy's certificate was denied a session.
func (s *Server) Duplicate(ctx context.Context, who identity.Subject, process string, err error) {
	s.waits(ctx, credential{who, byCertificate}, process, call.Address(ctx), err)
}
