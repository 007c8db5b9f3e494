// Package virtualplane runs replicas of the control plane, and the storage of replicas and agents, in memory and in
// virtual time (testing/synctest).
package virtualplane

import (
	"context"
	"errors"
	"iter"
	"log/slog"
	"net"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sonde-mesh/sonde/agents"
	"github.com/sonde-mesh/sonde/agents/join"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/mtls"
	"github.com/sonde-mesh/sonde/identity/serving"
	"github.com/sonde-mesh/sonde/internal/run"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/pipeline"
	"github.com/sonde-mesh/sonde/replicas"
	"github.com/sonde-mesh/sonde/xds"
)

// Sources of a replica's view, which needs both: Meshes and Dataplanes, and the state of other
// replicas.
const (
	SourceObjects = "objects"
	sourcePeers   = "peers"
)

// Ports of each replica.
const (
	AgentsPort = ":5678"
	PeersPort  = ":5682"
)

// ReplicaOptions of a replica. All except for Agents are required.
type ReplicaOptions struct {
	Name, Host string
	Network    *virtual.Network
	Secrets    *Client
	Tokens     join.Authenticator
	Logger     *slog.Logger
	// ConnectionAge is the maximum age of an agent's connection.
	ConnectionAge time.Duration
	// Late waits for the delay of a change. It returns false if ctx ends first.
	Late func(ctx context.Context) bool
	// Agents completes the options of the agents' server. Optional.
	Agents func(r *Replica, o *agents.Options)
}

// Replica is one process of the control plane, with the real parts that authenticate agents and send them messages.
type Replica struct {
	Authority *identity.Authority
	Serving   *serving.Certificate
	Peers     *replicas.Peers
	Agents    *agents.Server
	Pipeline  *pipeline.Pipeline

	o           ReplicaOptions
	credentials *mtls.Credentials
	tasks       *errgroup.Group

	// Changes are applied in order, each after a delay.
	mu     sync.Mutex
	queue  []func()
	queued run.Signal
}

// NewReplica creates the parts, as package controlplane does.
func NewReplica(ctx context.Context, o ReplicaOptions) (*Replica, error) {
	r := &Replica{o: o, queued: run.NewSignal()}
	var err error
	if r.Serving, err = serving.Open(ctx, serving.Options{Storage: o.Secrets, Logger: o.Logger}); err != nil {
		return nil, err
	}
	r.Authority, err = identity.New(ctx, identity.Options{
		Secrets: o.Secrets, Proxies: r.proxies, Logger: o.Logger,
		Followed: func(meshName string) { r.Agents.Followed(meshName) },
	})
	if err != nil {
		return nil, err
	}
	certificate := r.Serving.Replica(mesh.DefaultTrustDomain, o.Name)
	r.Peers, err = replicas.New(replicas.Options{
		Name: o.Name, Logger: o.Logger,
		Server: certificate.Server(), Client: certificate.Client(), NameOf: certificate.NameOf,
		Dial: func(ctx context.Context, address string) (net.Conn, error) {
			return o.Network.DialFrom(o.Host)(ctx, "tcp", address)
		},
	})
	if err != nil {
		return nil, err
	}
	r.Pipeline = pipeline.New(pipeline.Options{
		View: meshview.Options{
			TrustDomain: mesh.DefaultTrustDomain, Sources: []string{SourceObjects, sourcePeers},
			Applied: func(c meshview.Change) { r.Agents.Changed(c) },
		},
		Authority: r.Authority, Publishing: func(ids []mesh.ID) func() { return r.Agents.Publishing(ids) }, Logger: o.Logger,
	}, pipeline.Authorize)
	options := agents.Options{
		Authority: r.Authority, Tokens: o.Tokens, View: r.Pipeline.Builder.View, Observe: r.Pipeline.Builder.Observe,
		Bootstrap: func(*meshview.Proxy, join.Sidecar) ([]byte, error) { return []byte("{}"), nil },
		Replica:   o.Name, Peers: r.Peers, Leads: func() bool { return false }, Logger: o.Logger,
	}
	if o.Agents != nil {
		o.Agents(r, &options)
	}
	if r.Agents, err = agents.New(options); err != nil {
		return nil, err
	}
	r.Peers.Connect(r.Agents)
	r.credentials, err = mtls.New(mtls.Options{
		TLS: r.Serving.TLS(), Verifier: r.Authority, Joins: agents.Joins, Logger: o.Logger,
	})
	return r, err
}

// proxies is an identity.Options.Proxies.
func (r *Replica) proxies(meshName string) (iter.Seq2[string, string], bool) {
	return r.Pipeline.Builder.View().Instances(meshName)
}

// Start makes the replica listen, and run until ctx ends. also are tasks that end with it.
func (r *Replica) Start(ctx context.Context, also ...func(context.Context) error) error {
	ends, err := r.o.Network.Listen(ctx, "tcp", r.o.Host+AgentsPort)
	if err != nil {
		return err
	}
	between, err := r.o.Network.Listen(ctx, "tcp", r.o.Host+PeersPort)
	if err != nil {
		return errors.Join(err, ends.Close())
	}
	server := controlplane.NewServer(r.credentials, r.o.ConnectionAge, xds.ServerOptions()...)
	r.Agents.Register(server)
	r.tasks, ctx = errgroup.WithContext(ctx)
	tasks := []func(context.Context) error{
		r.Pipeline.Run, r.Authority.Run, r.Agents.Run, r.Peers.Run, r.hear,
		func(ctx context.Context) error { return r.Peers.Serve(ctx, between) },
		func(ctx context.Context) error {
			if r.Peers.AwaitFirst(ctx) == nil {
				r.Pipeline.Builder.Synced(sourcePeers)
			}
			return nil
		},
		func(ctx context.Context) error {
			defer context.AfterFunc(ctx, func() {
				r.credentials.Close()
				server.Stop()
			})()
			return server.Serve(ends)
		},
	}
	for _, task := range append(tasks, also...) {
		r.tasks.Go(func() error { return task(ctx) })
	}
	return nil
}

// Wait waits until all tasks have ended, and returns the first error.
func (r *Replica) Wait() error { return r.tasks.Wait() }

// Later calls hear after a delay, and after the earlier calls.
func (r *Replica) Later(hear func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.queue = append(r.queue, hear)
	r.queued.Set()
}

func (r *Replica) hear(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-r.queued:
		}
		if !r.o.Late(ctx) {
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
