package replicas

import (
	"context"
	"iter"
	"log/slog"
	"maps"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/peers"
	"github.com/sonde-mesh/sonde/test/virtual"
	"github.com/sonde-mesh/sonde/xds"
)

const (
	sourceObjects = "objects"
	sourcePeers   = "peers"

	agentsPort = ":5678"
	peersPort  = ":5682"

	// connectionAge is short, so that streams move in most schedules.
	connectionAge = 2 * time.Minute
)

// replica is one process of the control plane, with all that decides who is who and what is told to whom. Kubernetes is what the schedule does.
type replica struct {
	name, host string
	sim        *simulation
	api        *virtual.Client
	leads      atomic.Bool

	authority *identity.Authority
	serving   *serving.Certificate
	peers     *peers.Peers
	agents    *agents.Server
	pipeline  *controlplane.Pipeline
	freeze    *freeze.Freeze // nil if nothing judges whether the mesh is seen

	stop  context.CancelFunc
	tasks *errgroup.Group

	// Objects are applied in their order, each after a while, and none while the API server is cut off.
	mu     sync.Mutex
	queue  []func()
	queued chan struct{}
}

// startReplica starts one that reads all that there is now.
func startReplica(ctx context.Context, s *simulation, name, host string) (*replica, error) {
	r := &replica{name: name, host: host, sim: s, queued: make(chan struct{}, 1)}
	r.api = s.etcd.Client(r.lag)
	ctx, r.stop = context.WithCancel(ctx)
	r.tasks, ctx = errgroup.WithContext(ctx)
	if err := r.open(ctx); err != nil {
		r.stop()
		return nil, err
	}
	credentials, err := mtls.New(mtls.Options{TLS: r.serving.TLS(), Verifier: r.authority, Joins: agents.Joins, Logger: r.log()})
	if err != nil {
		r.stop()
		return nil, err
	}
	s.read(r)
	r.peers.Follow(s.addresses())
	ends := r.network().Listen(host + agentsPort)
	between := r.network().Listen(host + peersPort)
	server := controlplane.NewServer(credentials, connectionAge, xds.ServerOptions()...)
	r.agents.Register(server)
	run := func(task func(context.Context) error) { r.tasks.Go(func() error { return task(ctx) }) }
	run(r.pipeline.Run)
	run(r.authority.Run)
	run(r.serving.Run)
	run(r.agents.Run)
	run(r.peers.Run)
	run(func(ctx context.Context) error { return r.peers.Serve(ctx, between) })
	run(r.applyObjects)
	run(func(ctx context.Context) error {
		if r.peers.AwaitFirst(ctx) == nil {
			r.pipeline.Builder.Synced(sourcePeers)
		}
		return nil
	})
	run(func(ctx context.Context) error {
		stopped := context.AfterFunc(ctx, func() {
			credentials.Close()
			server.Stop()
		})
		defer stopped()
		return server.Serve(ends)
	})
	return r, nil
}

func (r *replica) network() *virtual.Network { return r.sim.network }

// lag is how late this replica hears of something.
func (r *replica) lag() time.Duration { return r.sim.lag() }

// open makes the parts of the control plane, as package controlplane does.
func (r *replica) open(ctx context.Context) error {
	var err error
	if r.serving, err = serving.Open(ctx, serving.Options{Storage: r.api, Logger: r.log()}); err != nil {
		return err
	}
	r.authority, err = identity.New(ctx, identity.Options{
		Secrets: r.api, Proxies: r.proxies, Logger: r.log(), Followed: func(meshName string) { r.agents.Followed(meshName) },
	})
	if err != nil {
		return err
	}
	certificate := r.serving.Replica(mesh.DefaultTrustDomain, r.name)
	r.peers, err = peers.New(peers.Options{
		Name: r.name, Server: certificate.Server(), Client: certificate.Client(), NameOf: certificate.NameOf, Logger: r.log(),
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return r.network().Dial(ctx, r.host, address)
		},
	})
	if err != nil {
		return err
	}
	r.pipeline = controlplane.NewPipeline(controlplane.PipelineOptions{
		View: meshview.Options{
			TrustDomain: mesh.DefaultTrustDomain, Sources: []string{sourceObjects, sourcePeers}, Applied: func(c meshview.Change) { r.agents.Changed(c) },
		},
		Authority: r.authority, Publishing: func(ids []mesh.ID) func() { return r.agents.Publishing(ids) }, Logger: r.log(),
	}, controlplane.Authorize)
	frozen := r.judge()
	r.agents, err = agents.New(agents.Options{
		Frozen:    frozen,
		Authority: r.authority, Tokens: tokens{}, View: r.pipeline.Builder.View, Observe: r.pipeline.Builder.Observe,
		Bootstrap: func(*meshview.Proxy, join.Sidecar) ([]byte, error) { return []byte("{}"), nil },
		Replica:   r.name, Peers: r.peers, Leads: r.leads.Load, ServingCA: r.serving, Logger: r.log(),
	})
	r.peers.Connect(r.agents)
	return err
}

// proxies is an identity.Options.Proxies.
func (r *replica) proxies(meshName string) (iter.Seq2[string, string], bool) {
	return r.pipeline.Builder.View().Instances(meshName)
}

// end ends the process. One that is killed says nothing any more.
func (r *replica) end(killed bool) {
	if killed {
		r.network().Reset(r.host)
	}
	r.stop()
	if err := r.tasks.Wait(); err != nil {
		r.sim.Wrong("%s ended: %v", r.name, err)
	}
	r.network().Reset(r.host)
}

// later has the replica hear of something after a while.
func (r *replica) later(hear func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, hear)
	select {
	case r.queued <- struct{}{}:
	default: // it has not taken those before
	}
}

func (r *replica) applyObjects(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.queued:
		}
		for late := r.lag(); late > 0 || r.api.Reach() != nil; late = 0 {
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(max(late, 100*time.Millisecond)):
			}
		}
		r.mu.Lock()
		due := r.queue
		r.queue = nil
		r.mu.Unlock()
		for _, hear := range due {
			hear()
		}
	}
}

func (r *replica) log() *slog.Logger {
	return slog.New(slog.NewTextHandler(lines{r}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
}

// lines writes the log into the journal. That a certificate is refused is wrong in any
// schedule, unless it has expired: an agent may be cut off for so long.
type lines struct{ replica *replica }

func (l lines) Write(line []byte) (int, error) {
	text := strings.TrimSpace(string(line))
	if strings.Contains(text, "client certificate refused") && !strings.Contains(text, "has expired") {
		l.replica.sim.Wrong("%s: %s", l.replica.name, text)
	}
	l.replica.sim.Detail("%s: %s", l.replica.name, text)
	return len(line), nil
}

// tokens are the names of proxies.
type tokens struct{}

// Authenticate implements join.Authenticator.
func (tokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	return identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: token, Path: mesh.WorkloadPath(workload)}, nil
}

// addresses are those of the replicas that there are, by name.
func (s *simulation) addresses() map[string]string {
	all := map[string]string{}
	for name, r := range s.replicas {
		all[name] = r.host + peersPort
	}
	return all
}

// follow has all replicas hear which there are.
func (s *simulation) follow() {
	all := s.addresses()
	for _, r := range s.replicas {
		r.later(func() { r.peers.Follow(maps.Clone(all)) })
	}
}
