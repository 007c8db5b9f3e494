package restarts

import (
	"context"
	"iter"
	"log/slog"
	"net"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/peers"
	"github.com/sonde-mesh/sonde/xds"
)

const (
	sourceObjects = "objects"
	sourcePeers   = "peers"

	agentsPort = ":5678"
	peersPort  = ":5682"

	// connectionAge is short, so that sessions move in most schedules.
	connectionAge = 5 * time.Minute
	// requestTimeout is that of package controller.
	requestTimeout = 30 * time.Second
)

// replica is one process of the control plane, with all that restarts depend on.
type replica struct {
	name, host string
	sim        *simulation
	transport  *transport

	authority *identity.Authority
	serving   *serving.Certificate
	peers     *peers.Peers
	agents    *agents.Server
	pipeline  *controlplane.Pipeline
	restarts  *restarts.Restarts

	stop  context.CancelFunc
	tasks *errgroup.Group
	// stopLeading and led are those of the term that it leads, nil if it does not.
	stopLeading context.CancelFunc
	led         chan struct{}
	frozen      bool
	stoppedAt   time.Time

	// What it hears is applied in its order, each after a while.
	mu     sync.Mutex
	queue  []func()
	queued chan struct{}
}

func (s *simulation) newReplica(ctx context.Context, name, host string, ahead time.Duration) (*replica, error) {
	r := &replica{name: name, host: host, sim: s, transport: s.newTransport(name, ahead), queued: make(chan struct{}, 1)}
	ctx, r.stop = context.WithCancel(ctx)
	r.tasks, ctx = errgroup.WithContext(ctx)
	credentials, err := r.open(ctx)
	if err != nil {
		r.stop()
		return nil, err
	}
	r.read()
	r.peers.Follow(s.addresses())
	ends, between := s.network.Listen(host+agentsPort), s.network.Listen(host+peersPort)
	server := controlplane.NewServer(credentials, connectionAge, xds.ServerOptions()...)
	r.agents.Register(server)
	run := func(task func(context.Context) error) { r.tasks.Go(func() error { return task(ctx) }) }
	for _, task := range []func(context.Context) error{r.pipeline.Run, r.authority.Run, r.agents.Run, r.peers.Run, r.restarts.Run, r.hear} {
		run(task)
	}
	run(func(ctx context.Context) error { return r.peers.Serve(ctx, between) })
	run(func(ctx context.Context) error {
		if r.peers.AwaitFirst(ctx) == nil {
			r.pipeline.Builder.Synced(sourcePeers)
		}
		return nil
	})
	run(func(ctx context.Context) error {
		defer context.AfterFunc(ctx, func() {
			credentials.Close()
			server.Stop()
		})()
		return server.Serve(ends)
	})
	return r, nil
}

// open makes the parts of the control plane, as package controlplane does.
func (r *replica) open(ctx context.Context) (*mtls.Credentials, error) {
	s, log := r.sim, r.log()
	secrets := s.secrets.Client(func() time.Duration { return 0 })
	var err error
	if r.serving, err = serving.Open(ctx, serving.Options{Storage: secrets, Logger: log}); err != nil {
		return nil, err
	}
	r.authority, err = identity.New(ctx, identity.Options{
		Secrets: secrets, Proxies: r.proxies, Logger: log, Followed: func(meshName string) { r.agents.Followed(meshName) },
	})
	if err != nil {
		return nil, err
	}
	certificate := r.serving.Replica(mesh.DefaultTrustDomain, r.name)
	r.peers, err = peers.New(peers.Options{
		Name: r.name, Server: certificate.Server(), Client: certificate.Client(), NameOf: certificate.NameOf, Logger: log,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return s.network.Dial(ctx, r.host, address)
		},
	})
	if err != nil {
		return nil, err
	}
	if err := r.openRestarts(); err != nil {
		return nil, err
	}
	r.pipeline = controlplane.NewPipeline(controlplane.PipelineOptions{
		View: meshview.Options{
			TrustDomain: mesh.DefaultTrustDomain, Sources: []string{sourceObjects, sourcePeers}, Applied: func(c meshview.Change) { r.agents.Changed(c) },
		},
		Authority: r.authority, Publishing: func(ids []mesh.ID) func() { return r.agents.Publishing(ids) }, Logger: log,
	}, controlplane.Authorize)
	r.agents, err = agents.New(agents.Options{
		Authority: r.authority, Tokens: tokens{}, View: r.pipeline.Builder.View, Observe: r.pipeline.Builder.Observe,
		Bootstrap: func(*meshview.Proxy, join.Sidecar) ([]byte, error) { return []byte("{}"), nil },
		Replica:   r.name, Peers: r.peers, Leads: func() bool { return false }, Logger: log,
		Restarts: told{controlplane.SessionRestarts(r.restarts), s},
	})
	if err != nil {
		return nil, err
	}
	r.peers.Connect(r.agents)
	return mtls.New(mtls.Options{TLS: r.serving.TLS(), Verifier: r.authority, Joins: agents.Joins, Logger: log})
}

func (r *replica) openRestarts() error {
	config := r.transport.config()
	watching, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	timed := rest.CopyConfig(config)
	timed.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(timed)
	if err != nil {
		return err
	}
	var clients [2]rest.Interface
	for i, timeout := range []time.Duration{0, requestTimeout} {
		if clients[i], err = objects.NewClient(config, timeout); err != nil {
			return err
		}
	}
	r.restarts = restarts.New(restarts.Options{
		Watching: watching, Grants: clients[0], Writing: clients[1], Pods: client.CoreV1(), Logger: r.log(),
		Namespaces: func() map[string]bool { return nil }, WithoutGrants: func() map[watch.Key]bool { return nil }, Record: func(events.Event) {},
		Liveness: func() map[watch.Key]restarts.Liveness { return controlplane.LivenessOf(r.agents.PodLiveness()) },
		Tell:     func(pod watch.Key) { r.agents.WakeRestarts(mesh.MakeID(mesh.DefaultMesh, pod.Name+"."+pod.Namespace)) },
	})
	return nil
}

// told adds what a RestartBudget says of the time in which the control plane is away.
type told struct {
	restartsOf
	sim *simulation
}

type restartsOf interface {
	Of(id mesh.ID) *agentv1.Restarts
	Held(id mesh.ID)
}

// Of implements session.Restarts.
func (t told) Of(id mesh.ID) *agentv1.Restarts {
	m := t.restartsOf.Of(id)
	if m != nil {
		m.WhenAway = t.sim.whenAway(id)
	}
	return m
}

// proxies is an identity.Options.Proxies.
func (r *replica) proxies(meshName string) (iter.Seq2[string, string], bool) {
	return r.pipeline.Builder.View().Instances(meshName)
}

// lead has the replica lead until it stops, or a while after it has been replaced.
func (r *replica) lead(ctx context.Context, epoch int64) {
	r.sim.Note("%s leads, epoch %d", r.name, epoch)
	ctx, r.stopLeading = context.WithCancel(ctx)
	r.led = make(chan struct{})
	go func() {
		defer close(r.led)
		if err := r.restarts.Lead(ctx, epoch); err != nil {
			r.sim.Wrong("%s: Lead() = %v", r.name, err)
		}
	}()
}

// endTerm ends the term of the replica, if it leads.
func (r *replica) endTerm() {
	if r.led != nil {
		r.stopLeading()
		r.transport.set(noTrap)
		r.transport.thaw() // it may just have stopped by itself
		<-r.led
		r.led = nil
	}
}

// end kills the process.
func (r *replica) end() {
	r.sim.network.Reset(r.host)
	r.sim.network.Isolate(r.host, false)
	r.transport.die()
	r.stop()
	r.endTerm()
	if err := r.tasks.Wait(); err != nil {
		r.sim.Wrong("%s ended: %v", r.name, err)
	}
	r.sim.network.Reset(r.host)
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

func (r *replica) hear(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.queued:
		}
		if !pause(ctx, r.sim.latency(longestWatch)) {
			return nil
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
	return slog.New(slog.NewTextHandler(lines{r.sim, r.name}, &slog.HandlerOptions{Level: slog.LevelDebug, ReplaceAttr: withoutTime}))
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey {
		return slog.Attr{}
	}
	return a
}

// lines writes a log into the journal.
type lines struct {
	sim *simulation
	of  string
}

func (l lines) Write(line []byte) (int, error) {
	l.sim.Detail("%s: %s", l.of, strings.TrimSpace(string(line)))
	return len(line), nil
}

// tokens are the names of proxies and the UIDs of their pods.
type tokens struct{}

// Authenticate implements join.Authenticator.
func (tokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	name, uid, _ := strings.Cut(token, " ")
	return identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: name, Instance: uid, Path: mesh.WorkloadPath("web")}, nil
}

// read gives a replica that starts what there is.
func (r *replica) read() {
	m := &mesh.Mesh{Name: mesh.DefaultMesh}
	m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin}}}
	m.SetDefaults()
	r.pipeline.Builder.Set(sourceObjects, m)
	for _, d := range r.sim.dataplanes() {
		r.pipeline.Builder.Set(sourceObjects, d)
	}
	r.pipeline.Builder.Synced(sourceObjects)
}
