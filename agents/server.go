// Package agents is the control plane's side of the agents' API (api/agent/v1): proxies join and renew certificates, agents
// keep a session, and their reports drive the rotation of a mesh's CA.
package agents

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/connlimit"
	"github.com/sonde-mesh/sonde/meshview"
)

// Authenticator finds out whom a token identifies. The error says why the token is refused, and does not contain it. It wraps
// identity.ErrUnavailable if nobody can tell now, and identity.ErrNotKnown if the proxy of the token is not known: then the agent tries
// again soon. *token.Issuer implements it, and *tokenreview.Authenticator.
type Authenticator interface {
	Authenticate(ctx context.Context, token string) (identity.Subject, error)
}

// Storage keeps sets of proxies, and what is known of them. Names are slash-separated paths. Write is atomic, and durable as soon as the disk
// takes it, for which it does not wait long. List returns the names in a directory; one that does not exist is empty. *store.Records
// implements it.
type Storage interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	Remove(name string) error
	List(directory string) ([]string, error)
}

// Options of a Server.
type Options struct {
	// Authority issues certificates and keeps rotations. The gRPC server must have mtls.Credentials that verify by it.
	// Required.
	Authority *identity.Authority
	// Tokens authenticates agents that join without a certificate. Required.
	Tokens Authenticator
	// Storage keeps which proxies drain. Default: that is only in memory, which is enough where something else says which
	// endpoints get traffic, such as Kubernetes.
	Storage Storage
	// View returns the current view, nil before the first. Required.
	View func() *meshview.View
	// Bootstrap returns the JSON of Envoy's bootstrap. Required.
	Bootstrap func(p *meshview.Proxy, s Sidecar) ([]byte, error)
	// Observe passes the whole Observation of a proxy to the view's builder, and returns at once. It must not call the
	// server. Required.
	Observe func(proxy mesh.ID, o mesh.Observation)
	// ProbeFailed is told of probes that fail. It must return at once. Default: nobody is told.
	ProbeFailed func(ProbeFailure)
	// Refused is told of joins that are refused, seldom for one address. It must return at once. Default: nobody is told.
	Refused func(Refusal)
	// Version of the control plane, to tell agents.
	Version string

	// joinRate is how many certificates one proxy may get by joining per second, joinBurst how many at once. Defaults 1 and 20.
	joinRate  rate.Limit
	joinBurst int
	// tokenChecks is how many tokens are checked at once, tokenTimeout how long a call waits for that. Defaults 32 and 5s.
	tokenChecks  int
	tokenTimeout time.Duration
	// maxSessions is how many sessions may be open at once. Default 10000.
	maxSessions int
	// helloTimeout is how long a session may take for its first message. Default 10s.
	helloTimeout time.Duration
	// silentAfter is how long a proxy must have no session before a forced rotation skips it. The start of the control
	// plane counts as the end of a session, so that agents have time to reconnect; for that long after the start they are
	// not shown as lost. Default 30s.
	silentAfter time.Duration
	// maxAnswer limits what an Envoy says to a query, in bytes. Default 64 MiB, more than the configuration of the largest proxies.
	maxAnswer int
	// recheck is how often Run looks for expired certificates. Default 5s.
	recheck time.Duration

	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Loop watches Run. Default: nobody does.
	Loop *heartbeat.Loop
	// Now is the clock for silentAfter and for times that are shown to people. Default time.Now.
	Now func() time.Time
}

// Sidecar is what an agent says of itself and of its Envoy.
type Sidecar struct {
	// ControlPlane is where it reaches the control plane, host:port.
	ControlPlane string
	// DrainTime is Envoy's.
	DrainTime time.Duration
	// Memory is how many bytes both may use together.
	Memory uint64
}

func (o *Options) setDefaults() error {
	if o.Authority == nil || o.Tokens == nil || o.View == nil || o.Bootstrap == nil || o.Observe == nil {
		return errors.New("agents: Authority, Tokens, View, Bootstrap and Observe are required")
	}
	o.joinRate = cmp.Or(o.joinRate, 1)
	o.joinBurst = cmp.Or(o.joinBurst, 20)
	o.tokenChecks = cmp.Or(o.tokenChecks, 32)
	o.tokenTimeout = cmp.Or(o.tokenTimeout, 5*time.Second)
	o.maxSessions = cmp.Or(o.maxSessions, 10_000)
	o.helloTimeout = cmp.Or(o.helloTimeout, 10*time.Second)
	o.silentAfter = cmp.Or(o.silentAfter, 30*time.Second)
	o.maxAnswer = cmp.Or(o.maxAnswer, 64<<20)
	o.recheck = cmp.Or(o.recheck, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.ProbeFailed == nil {
		o.ProbeFailed = func(ProbeFailure) {}
	}
	if o.Refused == nil {
		o.Refused = func(Refusal) {}
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Joins are the methods for which an agent needs no certificate.
var Joins = []string{agentv1.AgentService_Join_FullMethodName}

// Server serves agentv1.AgentService.
type Server struct {
	agentv1.UnimplementedAgentServiceServer
	o       Options
	started time.Time
	metrics *metrics
	// issues limits, by proxy, the certificates that are issued.
	issues *limiter
	// tokens has the calls whose token is checked, which addresses share.
	tokens *connlimit.Places[netip.Prefix]
	// refusals limits, by address, how often Options.Refused is told of agents without a valid token.
	refusals *limiter
	observed *observations
	// identities is locked while what was issued to a proxy is passed to observed.
	identities sync.Mutex
	waiting    *waiting
	// drains has the proxies that drain, unacceptedRecords those that have joined and whose Envoy has never accepted a listener: else
	// their endpoints would become ready with a restart of the control plane.
	drains, unacceptedRecords directory
	// drained has why administrators drain proxies; drainedLock is locked while that changes.
	drained     directory
	drainedLock sync.Mutex

	// stopping is closed when Run ends; running counts the goroutines of sessions.
	stopping chan struct{}
	running  sync.WaitGroup

	mu       sync.Mutex
	stopped  bool
	sessions map[mesh.ID]*session
	queries  map[string]*query     // those that somebody waits for, by ID
	ended    map[mesh.ID]time.Time // end of the last session of proxies that have none now
	// mismatches are those that have been logged, see checkWorkload.
	mismatches map[mesh.ID]mismatch
	// refused says why Envoy refuses inbound listeners, by address.
	refused map[mesh.ID]map[netip.AddrPort]string
	// unaccepted are the proxies in unacceptedRecords.
	unaccepted map[mesh.ID]bool
	// publishing counts for each proxy the changes of its endpoints that other proxies have not taken yet.
	publishing   map[mesh.ID]int
	applications *applications
}

// New returns a server. It reads from the storage which proxies have joined and which drain, and passes that to Observe, so
// that the first view has it. Run has to be called.
func New(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		o:                 o,
		started:           o.Now(),
		issues:            newLimiter(o.joinRate, o.joinBurst),
		tokens:            connlimit.NewPlaces[netip.Prefix](connlimit.Options{Total: o.tokenChecks}),
		refusals:          newLimiter(1, 10),
		observed:          newObservations(o.Observe),
		waiting:           &waiting{proxies: map[mesh.ID]wait{}},
		drains:            directory{"draining", o.Storage},
		unacceptedRecords: directory{"unaccepted", o.Storage},
		drained:           directory{"drained", o.Storage},
		stopping:          make(chan struct{}),
		sessions:          map[mesh.ID]*session{},
		queries:           map[string]*query{},
		ended:             map[mesh.ID]time.Time{},
		mismatches:        map[mesh.ID]mismatch{},
		refused:           map[mesh.ID]map[netip.AddrPort]string{},
		unaccepted:        map[mesh.ID]bool{},
		publishing:        map[mesh.ID]int{},
	}
	s.applications = newApplications(directory{"applications", o.Storage}, s.Observe, o.Logger)
	var err error
	if s.metrics, err = newMetrics(s, o.Registerer); err != nil {
		return nil, err
	}
	s.loadJoined()
	if err := errors.Join(s.loadUnaccepted(), s.loadDraining(), s.loadDrained(), s.applications.load()); err != nil {
		return nil, err
	}
	return s, nil
}

// Register registers the agents' API with r.
func (s *Server) Register(r grpc.ServiceRegistrar) { agentv1.RegisterAgentServiceServer(r, s) }
