// Package agents is the control plane's side of the agents' API: it lets proxies join, hears what they say, and leads the
// rotation of a mesh's CA by it.
package agents

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	"google.golang.org/grpc"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/meshview"
)

// Options of a Server.
type Options struct {
	// Authority issues certificates and knows how far a rotation is. Required; the gRPC server has its ServerOptions.
	Authority *identity.Authority
	// Storage keeps which proxies drain. Required.
	Storage identity.Storage
	// View is the last view that is in effect, nil before the first. Required.
	View func() *meshview.View
	// Bootstrap returns the JSON of Envoy's bootstrap, for a control plane that this proxy reaches at that host:port.
	// Required.
	Bootstrap func(m *meshview.Mesh, p *meshview.Proxy, controlPlane string) ([]byte, error)
	// Observe tells the view's builder about a proxy, and returns at once. Required.
	Observe func(proxy mesh.ID, o mesh.Observation)
	// Version of the control plane, for agents.
	Version string

	// JoinRate is how often one address may join, in a second. Default 50, with a burst of JoinBurst, default 200: many
	// agents may come from one address, and all at once.
	JoinRate  rate.Limit
	JoinBurst int
	// MaxSessions that may be open at once. Default 10000.
	MaxSessions int
	// HelloTimeout is how long a session may take for its first message. Default 10s.
	HelloTimeout time.Duration
	// SilentAfter is how long a proxy must be without a session before a forced rotation passes over it. The start of
	// the control plane counts as the end of a session: agents must have had time to come back. Default 30s.
	SilentAfter time.Duration
	// Recheck is how often Run looks for what no report tells: certificates that are over. Default 5s.
	Recheck time.Duration

	// Logger, default none.
	Logger *slog.Logger
	// Registerer of the metrics, default none.
	Registerer prometheus.Registerer
	// Now is the clock of SilentAfter and of what people are shown. Default time.Now.
	Now func() time.Time
}

func (o *Options) setDefaults() error {
	if o.Authority == nil || o.Storage == nil || o.View == nil || o.Bootstrap == nil || o.Observe == nil {
		return errors.New("agents: Authority, Storage, View, Bootstrap and Observe are required")
	}
	o.JoinRate = cmp.Or(o.JoinRate, 50)
	o.JoinBurst = cmp.Or(o.JoinBurst, 200)
	o.MaxSessions = cmp.Or(o.MaxSessions, 10_000)
	o.HelloTimeout = cmp.Or(o.HelloTimeout, 10*time.Second)
	o.SilentAfter = cmp.Or(o.SilentAfter, 30*time.Second)
	o.Recheck = cmp.Or(o.Recheck, 5*time.Second)
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.Now == nil {
		o.Now = time.Now
	}
	return nil
}

// Server serves agentv1.AgentService.
type Server struct {
	agentv1.UnimplementedAgentServiceServer
	o       Options
	started time.Time
	metrics *metrics
	joins   *limiter
	renews  *limiter

	// stopping is closed when Run ends; running counts the handlers of sessions, and what they have started.
	stopping chan struct{}
	running  sync.WaitGroup

	mu       sync.Mutex
	stopped  bool
	sessions map[mesh.ID]*session
	ended    map[mesh.ID]time.Time // the last session, where there is none now
	draining map[mesh.ID]bool      // what the storage has
}

// New reads which proxies drain from the storage, and tells Observe, so that the first view already knows. Run must run.
func New(o Options) (*Server, error) {
	if err := o.setDefaults(); err != nil {
		return nil, err
	}
	s := &Server{
		o:        o,
		started:  o.Now(),
		joins:    newLimiter(o.JoinRate, o.JoinBurst),
		renews:   newLimiter(1, 20),
		stopping: make(chan struct{}),
		sessions: map[mesh.ID]*session{},
		ended:    map[mesh.ID]time.Time{},
		draining: map[mesh.ID]bool{},
	}
	var err error
	if s.metrics, err = newMetrics(s, o.Registerer); err != nil {
		return nil, err
	}
	if err := s.loadDraining(); err != nil {
		return nil, err
	}
	return s, nil
}

// Register makes r serve the agents' API.
func (s *Server) Register(r grpc.ServiceRegistrar) { agentv1.RegisterAgentServiceServer(r, s) }
