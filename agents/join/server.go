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

// Authenticator finds out whom a token identifies. The error says why the token is refused, and does not contain it. It wraps
// identity.ErrUnavailable if that cannot be told now, and identity.ErrNotKnown if the proxy of the token is not known: then the agent tries
// again soon. *token.Issuer implements it, and *tokenreview.Authenticator.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (identity.Subject, error)
}

// Sidecar is what an agent says of itself and of its Envoy.
type Sidecar struct {
	// ControlPlane is where it reaches the control plane, host:port.
	ControlPlane string
	// DrainTime is Envoy's.
	DrainTime time.Duration
	// Memory is how many bytes both may use together.
	Memory uint64
	// ServingCAFile says that Envoy finds the control plane's CAs in the agent's file.
	ServingCAFile bool
	// Records says that the agent takes records of plain text from Envoy.
	Records bool
}

// Options of a Server. All are required but Version, Refused, Registerer and Limits.
type Options struct {
	// Authority issues certificates.
	Authority *identity.Authority
	// Tokens authenticates agents that join without a certificate.
	Tokens Authenticator
	// Observed learns who has joined.
	Observed *observed.State
	// View returns the current view, nil before the first.
	View func() *meshview.View
	// Bootstrap returns the JSON of Envoy's bootstrap.
	Bootstrap func(p *meshview.Proxy, s Sidecar) ([]byte, error)
	// CheckDuplicate returns an error if another process than this one has the session of a proxy, and lives.
	CheckDuplicate func(ctx context.Context, proxy mesh.ID, process, address string) error
	// Waits is called after it has changed whether a proxy waits. It must return at once.
	Waits func(proxy mesh.ID)
	// Version of the control plane, to say which agents it does not support. Default: of none.
	Version string
	// Refused is told of joins that are refused, seldom for one address. It must return at once.
	Refused func(Refusal)
	// Absent says why a proxy with a valid credential has no Dataplane, "" if nothing is known of that.
	Absent     func(identity.Subject) string
	Logger     *slog.Logger
	Registerer prometheus.Registerer
	Now        func() time.Time
	Limits     Limits
}

// Limits of joins.
type Limits struct {
	// Rate is how many certificates one proxy may get per second, Burst how many at once.
	Rate  rate.Limit
	Burst int
	// TokenChecks is how many tokens are checked at once, TokenTimeout how long a call waits for that.
	TokenChecks  int
	TokenTimeout time.Duration
}

// DefaultLimits returns those of a control plane.
func DefaultLimits() Limits {
	return Limits{Rate: 1, Burst: 20, TokenChecks: 32, TokenTimeout: 5 * time.Second}
}

// Server serves Join and Renew of agentv1.AgentService. A replica may own all of its state alone: its limits are for the calls that come to
// it, so n replicas together allow n times as much.
type Server struct {
	o       Options
	metrics *metrics
	// issues limits, by proxy, the certificates that are issued.
	issues *limiter
	// tokens has the calls whose token is checked, which addresses share.
	tokens *connlimit.Places[netip.Prefix]
	// refusals limits, by address, how often Options.Refused is told of agents without a valid token.
	refusals *sourcelimit.Limiter
	// waiting has the proxies that have tried here, and failed. Other replicas are told.
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

// Sweep forgets callers and waiting proxies that have not come for a while.
func (s *Server) Sweep() {
	s.issues.sweep()
	for _, id := range s.waiting.forget(s.o.Now()) {
		s.o.Waits(id)
	}
}

// Joined notes that a process of a proxy waits no more: it has joined, or has a session, here or elsewhere. It is "" if that is not known.
func (s *Server) Joined(id mesh.ID, process string) {
	if s.waiting.remove(id, process) {
		s.o.Waits(id)
	}
}

// Ended notes that the session of a proxy has ended at that time, here or elsewhere.
func (s *Server) Ended(id mesh.ID, at time.Time) {
	if s.waiting.ended(id, at) {
		s.o.Waits(id)
	}
}

// Wait returns since when and why a proxy waits, false if it does not.
func (s *Server) Wait(id mesh.ID) (Wait, bool) { return s.waiting.of(id) }

// Waiting returns the proxies whose agents try to join with a valid credential, and cannot.
func (s *Server) Waiting() map[mesh.ID]Wait { return s.waiting.all() }

// Duplicate records and logs that a process with the certificate of a proxy has got no session, since another one has it.
func (s *Server) Duplicate(ctx context.Context, who identity.Subject, process string, err error) {
	s.waits(ctx, credential{who, byCertificate}, process, call.Address(ctx), err)
}
