package restarts

import (
	"context"
	"log/slog"
	"strings"
	"time"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/agents"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/test/virtualplane"
)

const (
	// connectionAge is short, so that sessions move in most schedules.
	connectionAge = 5 * time.Minute
	// requestTimeout is the same as in package controller.
	requestTimeout = 30 * time.Second
)

// replica is one process of the control plane, with the parts that restarts depend on.
type replica struct {
	*virtualplane.Replica
	name, host string
	sim        *simulation
	transport  *transport
	restarts   *restarts.Restarts

	stop context.CancelFunc
	// stopLeading and led belong to the current term, or are nil.
	stopLeading context.CancelFunc
	led         chan struct{}
	frozen      bool
	stoppedAt   time.Time
}

func (s *simulation) newReplica(ctx context.Context, name, host string, ahead time.Duration) (*replica, error) {
	r := &replica{name: name, host: host, sim: s, transport: s.newTransport(name, ahead)}
	ctx, r.stop = context.WithCancel(ctx)
	err := r.openRestarts()
	if err == nil {
		r.Replica, err = virtualplane.NewReplica(ctx, virtualplane.ReplicaOptions{
			Name: name, Host: host, Network: s.network, Secrets: s.secrets.Client(func() time.Duration { return 0 }), Tokens: tokens{}, Logger: s.log(name),
			ConnectionAge: connectionAge, Late: func(ctx context.Context) bool { return pause(ctx, s.latency(longestWatch)) },
			Agents: func(_ *virtualplane.Replica, o *agents.Options) {
				o.Restarts = told{&restarts.Answers{Restarts: r.restarts, Replica: name}, s}
			},
		})
	}
	if err != nil {
		r.stop()
		return nil, err
	}
	r.read()
	r.Peers.Follow(s.addresses())
	if err := r.Start(ctx, r.restarts.Run); err != nil {
		r.stop()
		return nil, err
	}
	return r, nil
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
		Watching: watching, Grants: clients[0], Writing: clients[1], Pods: client.CoreV1(), Logger: r.sim.log(r.name), Settings: r.sim.settings,
		Namespaces: func() map[string]bool { return nil }, Record: r.sim.recorded, Agents: func() restarts.Agents { return r.Agents },
		Proxy: func(pod watch.Key) mesh.ID {
			return mesh.MakeID(mesh.DefaultMesh, mesh.ObjectDataplane(pod.Namespace, pod.Name))
		},
	})
	return nil
}

// told adds a RestartBudget's setting for the time without a control plane.
type told struct {
	*restarts.Answers
	sim *simulation
}

// Of implements session.Restarts.
func (t told) Of(id mesh.ID) *agentv1.Restarts {
	m := t.Restarts.Of(id)
	if m != nil {
		m.WhenAway = t.sim.whenAway(id)
	}
	return m
}

// lead makes the replica lead until it stops, or a while after another leader has replaced it.
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
		r.transport.thaw() // the replica may just have stopped itself
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
	if err := r.Wait(); err != nil {
		r.sim.Wrong("%s ended: %v", r.name, err)
	}
	r.sim.network.Reset(r.host)
}

// log returns a process's logger, which writes into the journal.
func (s *simulation) log(of string) *slog.Logger {
	return virtualplane.Log(func(line string) { s.Detail("%s: %s", of, line) })
}

// tokens are the names of proxies and the UIDs of their pods.
type tokens struct{}

// Authenticate implements join.Authenticator.
func (tokens) Authenticate(_ context.Context, token string) (identity.Subject, error) {
	name, uid, _ := strings.Cut(token, " ")
	return identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: name, Instance: uid, Path: mesh.WorkloadPath("web")}, nil
}

// read gives a starting replica the current objects.
func (r *replica) read() {
	m := &mesh.Mesh{Name: mesh.DefaultMesh}
	m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin}}}
	m.SetDefaults()
	r.Pipeline.Builder.Set(virtualplane.SourceObjects, m)
	for _, d := range r.sim.dataplanes() {
		r.Pipeline.Builder.Set(virtualplane.SourceObjects, d)
	}
	r.Pipeline.Builder.Synced(virtualplane.SourceObjects)
}
