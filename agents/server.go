// Package agents is the control plane's side of the agents' API (api/agent/v1): proxies join and renew certificates
// (join), agents keep a session (session), and their reports advance the rotation of a mesh's CA (rotation). Package
// observed keeps the state of proxies.
package agents

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/agents/observed"
	"github.com/sonde-mesh/sonde/agents/rotation"
	"github.com/sonde-mesh/sonde/agents/session"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/replicas"
)

// Options of a Server.
type Options struct {
	// Authority issues certificates and keeps rotations. The gRPC server must have mtls.Credentials that verify by it.
	// Required.
	Authority *identity.Authority
	// Tokens authenticates agents that join without a certificate. Required.
	Tokens join.Authenticator
	// Storage keeps which proxies drain. Default: in memory only, which is enough if another source, such as Kubernetes,
	// decides which endpoints get traffic.
	Storage facts.Storage
	// Frozen returns the reason to ignore that proxies are disconnected, "" without one. Default: always "".
	Frozen func() string
	// View returns the current view, nil before the first. Required.
	View func() *meshview.View
	// Bootstrap returns the JSON of Envoy's bootstrap. Required.
	Bootstrap func(p *meshview.Proxy, s join.Sidecar) ([]byte, error)
	// Observe passes the whole Observation of a proxy to the view's builder, and returns at once. It must not call the
	// server. Required.
	Observe func(proxy mesh.ID, o mesh.Observation)
	// Replica is the name of this replica, "" if the control plane has only one.
	Replica string
	// Peers are the other replicas, which get this replica's reports; may be nil. The server is their replicas.Local.
	Peers *replicas.Peers
	// Streams returns the ADS streams with this replica, for the others. Default: none.
	Streams func() map[mesh.ID][]*adminv1.Stream
	// Leads reports whether this replica advances rotations. Default: always.
	Leads func() bool
	// ProbeFailed is session.Options.ProbeFailed. Default: failures are dropped.
	ProbeFailed func(identity.Subject, *agentv1.ProbeFailure)
	// CallsRefused is session.Options.CallsRefused. Default: refusals are only logged.
	CallsRefused func(identity.Subject, *agentv1.Refusal)
	// Restarts decides about restarts of containers whose guarded liveness probe fails. Default: it grants none, and
	// agents pass failures to the kubelet.
	Restarts Restarts
	// Refused is called for rejected joins, rate-limited by address. It must return at once. Default: rejections are only
	// logged.
	Refused func(join.Refusal)
	// Absent returns why a proxy with a valid credential has no Dataplane, "" if the reason is unknown. Default: always
	// "".
	Absent func(identity.Subject) string
	// Version of the control plane, for agents.
	Version string
	// ServingCA verifies the control plane for agents, and is rotated. Default: agents get no CAs.
	ServingCA *serving.Certificate
	// ServingWaits are rotation.Options.ServingWaits.
	ServingWaits []func(context.Context, serving.Rotation) []string
	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Loop is the watchdog of Run. Default: none.
	Loop *heartbeat.Loop
	// Now is the clock for how long proxies are disconnected, and for displayed times. Default time.Now.
	Now func() time.Time

	joins    join.Limits
	sessions session.Limits
}

// Restarts decides about restarts for agents, and reports its decisions to the other replicas.
type Restarts interface {
	session.Restarts
	// Decisions returns the latest decisions, nil if another replica decides.
	Decisions(of *peerv1.ListDecisionsRequest) *peerv1.ListDecisionsPart
}

// recheckInterval is how often Run looks for expired certificates.
const recheckInterval = 5 * time.Second

func (o *Options) setDefaults() error {
	if o.Authority == nil || o.Tokens == nil || o.View == nil || o.Bootstrap == nil || o.Observe == nil {
		return errors.New("agents: Authority, Tokens, View, Bootstrap and Observe are required")
	}
	o.joins = cmp.Or(o.joins, join.DefaultLimits())
	o.sessions = cmp.Or(o.sessions, session.DefaultLimits())
	if o.Leads == nil {
		o.Leads = func() bool { return true }
	}
	if o.Streams == nil {
		o.Streams = func() map[mesh.ID][]*adminv1.Stream { return nil }
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	if o.Frozen == nil {
		o.Frozen = func() string { return "" }
	}
	if o.ProbeFailed == nil {
		o.ProbeFailed = func(identity.Subject, *agentv1.ProbeFailure) {}
	}
	if o.CallsRefused == nil {
		o.CallsRefused = func(identity.Subject, *agentv1.Refusal) {}
	}
	if o.Refused == nil {
		o.Refused = func(join.Refusal) {}
	}
	if o.Absent == nil {
		o.Absent = func(identity.Subject) string { return "" }
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Joins are the methods that an agent may call without a certificate.
var Joins = []string{agentv1.AgentService_Join_FullMethodName}

// Server serves agentv1.AgentService. Its parts keep the state.
type Server struct {
	agentv1.UnimplementedAgentServiceServer
	o         Options
	observed  *observed.State
	sessions  *session.Sessions
	joins     *join.Server
	rotations *rotation.Rotations
}

// New returns a server. It reads the storage, and passes joined and draining proxies to Observe, so that the first view
// has them. The caller must call Run.
func New(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{o: o}
	var held func(mesh.ID)
	if o.Restarts != nil {
		held = o.Restarts.Held
	}
	var err error
	s.observed, err = observed.New(observed.Options{
		Authority: o.Authority, Storage: o.Storage, View: o.View, Observe: o.Observe, Held: held, Peers: o.Peers,
		Logger: o.Logger, Now: o.Now,
	})
	if err != nil {
		return nil, err
	}
	var trusted func() identity.Bundle
	if o.ServingCA != nil {
		trusted = o.ServingCA.Trusted
	}
	s.sessions, err = session.New(session.Options{
		ServingCA: trusted,
		Authority: o.Authority, Observed: s.observed, Replica: o.Replica, Peers: o.Peers, View: o.View,
		ProbeFailed: o.ProbeFailed, CallsRefused: o.CallsRefused, Restarts: o.Restarts,
		Frozen:   func() bool { return o.Frozen() != "" },
		Reported: func(ctx context.Context, meshName string) { s.rotations.Mesh(meshName).Advance(ctx) },
		Duplicate: func(ctx context.Context, who identity.Subject, process string, err error) {
			s.joins.Duplicate(ctx, who, process, err)
		},
		Opened:  func(proxy mesh.ID, process string) { s.joins.Joined(proxy, process) },
		Ended:   func(proxy mesh.ID, at time.Time) { s.joins.Ended(proxy, at) },
		Version: o.Version, Logger: o.Logger, Registerer: o.Registerer, Now: o.Now, Limits: o.sessions,
	})
	if err != nil {
		return nil, err
	}
	s.joins, err = join.New(join.Options{
		Authority: o.Authority, Tokens: o.Tokens, Observed: s.observed, View: o.View, Bootstrap: o.Bootstrap,
		Waits: o.Peers.Changed, Refused: o.Refused,
		Absent: o.Absent, Version: o.Version,
		CheckDuplicate: s.sessions.CheckDuplicate, Logger: o.Logger, Registerer: o.Registerer, Now: o.Now, Limits: o.joins,
	})
	if err != nil {
		return nil, err
	}
	s.rotations = rotation.New(rotation.Options{
		Authority: o.Authority, ServingCA: o.ServingCA, View: o.View, Sessions: s.sessions, Leads: o.Leads,
		Replicas: o.Peers.Loaded,
		Advanced: o.Peers.ChangedReplica, ServingWaits: o.ServingWaits, Logger: o.Logger, Now: o.Now,
	})
	if o.Registerer != nil {
		if err := o.Registerer.Register(&awayAgents{s}); err != nil {
			return nil, fmt.Errorf("register metrics of agents: %w", err)
		}
	}
	return s, nil
}

// Register registers the agents' API with r.
func (s *Server) Register(r grpc.ServiceRegistrar) { agentv1.RegisterAgentServiceServer(r, s) }

// Join implements agentv1.AgentServiceServer.
func (s *Server) Join(ctx context.Context, r *agentv1.JoinRequest) (*agentv1.JoinResponse, error) {
	return s.joins.Join(ctx, r)
}

// Renew implements agentv1.AgentServiceServer.
func (s *Server) Renew(ctx context.Context, r *agentv1.RenewRequest) (*agentv1.RenewResponse, error) {
	return s.joins.Renew(ctx, r)
}

// Session implements agentv1.AgentServiceServer.
func (s *Server) Session(stream agentv1.AgentService_SessionServer) error {
	return s.sessions.Session(stream)
}

// Answer implements agentv1.AgentServiceServer.
func (s *Server) Answer(stream agentv1.AgentService_AnswerServer) error {
	return s.sessions.Answer(stream)
}
