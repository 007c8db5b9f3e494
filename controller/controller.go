// Package controller connects the control plane to Kubernetes: it converts objects there into the model, as store does
// from files, and only the leading replica writes there. Each behaviour has a directory of its own.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/catchup"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/freeze"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/objects"
	"github.com/sonde-mesh/sonde/controller/replicas"
	"github.com/sonde-mesh/sonde/controller/restarts"
	"github.com/sonde-mesh/sonde/controller/servingca"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/uninjected"
	"github.com/sonde-mesh/sonde/controller/warnings"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/controller/webhookconfig"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Sources of objects, by precedence: a Dataplane object never replaces a pod's Dataplane.
const (
	SourceCluster = "cluster"
	SourceObjects = "objects"
)

// Sources lists the sources of objects.
func Sources() []string { return []string{SourceCluster, SourceObjects} }

// PeersService is the name of the headless Service of the replicas.
const PeersService = "sonde-cp-peers"

// Builder receives the objects of all sources. *meshview.Builder implements it.
type Builder = source.Builder

// Options of a Controller.
type Options struct {
	// Config of the API server, without a timeout. Required.
	Config *rest.Config
	// Namespace of the control plane, and the name of this replica, such as its pod's. Required.
	Namespace, Replica string
	// Secrets keep the verdict of Freeze, and have the epoch of an earlier release. Required.
	Secrets freeze.Secrets
	// Builder receives the objects. Required.
	Builder Builder
	// Recorded is passed on to objects.Options. Required.
	Recorded func() map[string]*mesh.Mesh
	// WebhookConfiguration is the name of the webhook configurations that get the webhook's CA; "" for none. CA returns
	// the CA, and CAChanged receives when it has changed. A nil CAChanged means that it never changes.
	WebhookConfiguration string
	CA                   func() []byte
	CAChanged            <-chan struct{}
	// ServingCA returns the PEM of the CAs with which clients verify the control plane, which the controller publishes.
	// ServingCAChanged receives when they may have changed. Required.
	ServingCA        func() []byte
	ServingCAChanged <-chan struct{}
	// Webhooks is the suffix of the names of the injecting webhooks. Required.
	Webhooks string
	// Peers are the other replicas. Required.
	Peers Peers
	// Election is passed on to leader.Options.
	Election leader.Times
	// ProbesMode of Dataplane objects that do not set it. Default unified.
	ProbesMode mesh.ProbesMode
	// Agents returns the agents; Run is the first to call it. Streams returns the proxies that have an ADS stream with
	// this replica. Required.
	Agents  func() Agents
	Streams func() []mesh.ID
	// GuardedLiveness are the initial settings of Restarts. They must be valid.
	GuardedLiveness restartbudget.Settings
	// LivenessHold is how failures are held until the first Configure. Default mesh.HoldErrored.
	LivenessHold mesh.LivenessHold
	// Drains decides which proxies should get no new traffic.
	Drains source.Drains
	// FreezeMode is the initial mode of Freeze. It must be valid.
	FreezeMode freeze.Mode
	// WhyNotInjected returns why a pod has no sidecar; InjectionLabels are the labels of pods that request one. Default:
	// no pod should have one.
	WhyNotInjected  func(*corev1.Pod) uninjected.Absence
	InjectionLabels []string
	// Memory is the memory limit of this process in bytes. Each namespace may use a share of it. Default 512 MiB.
	Memory uint64
	// Registerer for metrics. Default none.
	Registerer prometheus.Registerer
	// Loops watch the controller's loops. Default: none.
	Loops Loops
	// Logger. Required.
	Logger *slog.Logger
}

// Loops of a Controller. Derive watches the loop that makes the objects of the mesh; the others watch loops that run on
// the leader only.
type Loops struct {
	Derive, Status, Warnings, CatchUp, WebhookCA, PublishedCA, Restarts, RestartWrites, Freeze *heartbeat.Loop
}

// Controller follows the cluster, and writes to the API server while this replica leads.
type Controller struct {
	// Cluster has the pods, Services and namespaces, Objects the Meshes and Dataplanes of operators.
	Cluster *source.Source
	Objects *objects.Objects
	// Restarts grants restarts of containers whose guarded liveness probe fails.
	Restarts *restarts.Restarts
	// Freeze has the verdict about lost zones.
	Freeze *freeze.Freeze
	// Events writes events.
	Events *events.Recorder

	o        Options
	client   kubernetes.Interface // with a timeout
	watching kubernetes.Interface
	warnings *warnings.Warnings
	replicas *replicas.Replicas
	leads    atomic.Bool
}

// requestTimeout bounds writes, and reads other than watches.
const requestTimeout = 30 * time.Second

// New returns a Controller. It reads nothing before Run.
func New(o Options) (*Controller, error) {
	if o.Config == nil || o.Namespace == "" || o.Replica == "" || o.Secrets == nil || o.Builder == nil ||
		o.Webhooks == "" || o.Peers == nil || o.Agents == nil || o.Streams == nil || o.ServingCA == nil || o.Logger == nil {
		return nil, errors.New(
			"controller: Config, Namespace, Replica, Secrets, Builder, Webhooks, Peers, Agents, Streams, ServingCA and Logger are required")
	}
	watching, err := kubernetes.NewForConfig(o.Config)
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	config := rest.CopyConfig(o.Config)
	config.Timeout = requestTimeout
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make client of the API server: %w", err)
	}
	c := &Controller{o: o, client: client, watching: watching, Events: events.New(client.EventsV1(), o.Logger)}
	c.warnings = warnings.New(client, c.Events, o.Logger, o.Loops.Warnings)
	c.Cluster = source.New(source.Options{
		Client: watching, Builder: o.Builder, Name: SourceCluster, PodChanged: c.warnings.PodChanged, Logger: o.Logger,
		Loop:        o.Loops.Derive,
		MeshChanged: func(namespace string) { c.Objects.MeshChanged(namespace) },
		Drains:      o.Drains, Held: c.drainHeld, Drained: c.drained,
		Connected: func(id mesh.ID) bool { return o.Agents().Connected(id) }, Registerer: o.Registerer, Memory: o.Memory,
	})
	c.newFreeze()
	c.replicas = replicas.New(replicas.Options{Client: watching, Namespace: o.Namespace, Service: PeersService,
		Changed: o.Peers.Follow})
	c.Objects, err = objects.New(objects.Options{
		Config: o.Config, Timeout: requestTimeout, Builder: o.Builder, Name: SourceObjects, ProbesMode: o.ProbesMode,
		Logger: o.Logger, Loop: o.Loops.Status,
		MeshOf:  func(namespace string) string { return c.Cluster.Namespace(namespace).Mesh() },
		Secrets: client.CoreV1().Secrets(o.Namespace), Recorded: o.Recorded, Memory: o.Memory,
	})
	return c, errors.Join(err, c.newRestarts(), c.registerLeader())
}

func (c *Controller) newRestarts() error {
	grants, err := objects.NewClient(c.o.Config, 0)
	if err != nil {
		return err
	}
	writing, err := objects.NewClient(c.o.Config, requestTimeout)
	if err != nil {
		return err
	}
	status, err := objects.NewClient(c.o.Config, requestTimeout)
	if err != nil {
		return err
	}
	c.Restarts = restarts.New(restarts.Options{
		Watching: c.watching, Grants: grants, Writing: writing, Status: status,
		Agents: func() restarts.Agents { return c.o.Agents() }, Proxy: c.Cluster.ProxyOf, Record: c.Events.Record,
		Logger: c.o.Logger, Settings: c.o.GuardedLiveness, Hold: c.o.LivenessHold, Loop: c.o.Loops.Restarts,
		Writes: c.o.Loops.RestartWrites,
		Pods:   c.client.CoreV1(), Namespaces: c.Cluster.Guarded, Registerer: c.o.Registerer, Memory: c.o.Memory,
		Lease: watch.Key{Namespace: c.o.Namespace, Name: leader.LeaseName}, Frozen: c.Freeze.Held,
	})
	return nil
}

// Leads reports whether this replica leads.
func (c *Controller) Leads() bool { return c.leads.Load() }

// Missing returns which kinds have not been read yet, and why; nil once all have been read.
func (c *Controller) Missing() error { return errors.Join(c.Cluster.Missing(), c.Objects.Missing()) }

// Lost returns since when the watch of any kind has been disconnected, zero if all are connected.
func (c *Controller) Lost() watch.Loss { return watch.First(c.Cluster.Lost(), c.Objects.Lost()) }

// Run runs until ctx ends, and then returns nil.
func (c *Controller) Run(ctx context.Context) error {
	c.Freeze.Load(ctx) // before endpoints are derived
	group, ctx := errgroup.WithContext(ctx)
	for _, task := range []func(context.Context) error{c.Cluster.Run, c.Objects.Run, c.replicas.Run, c.Restarts.Run,
		c.Events.Run, c.takePart} {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}

// drainHeld records an event about pods that keep serving although they should drain. All replicas find the same pods,
// but only the leader records the event.
func (c *Controller) drainHeld(service watch.Key, uid types.UID, pods []string) {
	if !c.leads.Load() {
		return
	}
	c.Events.Record(events.Event{
		Kind: "Service", APIVersion: "v1", Namespace: service.Namespace, Name: service.Name, UID: uid,
		Reason: "DrainHeld", Action: "Drain",
		Note: fmt.Sprintf("load balancers would have had fewer than %d proxies of this Service (--min-serving), so these pods keep serving although they should drain: %s",
			c.o.Drains.MinServing, strings.Join(pods, ", ")),
	})
}

// drained records an event about a pod that gets no new traffic. Only the leader records it, as in drainHeld.
func (c *Controller) drained(pod watch.Key, uid types.UID, why string) {
	if !c.leads.Load() {
		return
	}
	c.Events.Record(events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: uid, Reason: podcause.Draining,
		Action: "Drain",
		Note:   podcause.Drains(why), Normal: true,
	})
}

// lead sets leads until ctx ends. First it repeats the reports that arrived while this replica did not lead, since no
// leader may have recorded them.
func (c *Controller) lead(ctx context.Context) error {
	c.leads.Store(true)
	defer c.leads.Store(false)
	c.Cluster.TellDrains()
	<-ctx.Done()
	return nil
}

// takePart runs the tasks of the leader.
func (c *Controller) takePart(ctx context.Context) error {
	alone := []func(context.Context) error{c.lead, c.Objects.RunStatus, c.Objects.RunDefaultMesh, c.warnings.Run,
		c.tellBounds, c.catchUp, c.publishCA}
	if c.o.WhyNotInjected != nil {
		alone = append(alone, c.findUninjected)
	}
	if c.o.WebhookConfiguration != "" {
		alone = append(alone, c.writeCA)
	}
	tasks := []leader.Task{c.Freeze.Lead, c.Restarts.Lead}
	for _, task := range alone { // these tasks tolerate a second writer, and need no epoch
		tasks = append(tasks, func(ctx context.Context, _ int64) error { return task(ctx) })
	}
	return leader.Run(ctx, leader.Options{
		Client: c.client.CoordinationV1(), Namespace: c.o.Namespace, Identity: c.o.Replica, OldEpoch: c.o.Secrets,
		Tasks: tasks, Fit: c.o.Peers.Stale, Times: c.o.Election, Logger: c.o.Logger,
	})
}

// registerLeader registers the metric that says which replica leads.
func (c *Controller) registerLeader() error {
	if c.o.Registerer == nil {
		return nil
	}
	err := c.o.Registerer.Register(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_leader", Help: "1 while this replica is the leader, which alone writes to the API server.",
	}, func() float64 {
		if c.leads.Load() {
			return 1
		}
		return 0
	}))
	if err != nil {
		return fmt.Errorf("register metric of the leader: %w", err)
	}
	return nil
}

func (c *Controller) findUninjected(ctx context.Context) error {
	return uninjected.Run(ctx, uninjected.Options{
		Client: c.client, Missing: c.Cluster.Missing, Labels: c.o.InjectionLabels, WhyNot: c.o.WhyNotInjected,
		Record: c.Events.Record, Logger: c.o.Logger,
		Warn:       c.warnings.Warn,
		Namespaces: func() []string { return slices.Sorted(maps.Keys(c.Cluster.Guarded())) },
	})
}

func (c *Controller) catchUp(ctx context.Context) error {
	return catchup.Run(ctx, catchup.Options{Client: c.watching, Webhooks: c.o.Webhooks, Logger: c.o.Logger,
		Loop: c.o.Loops.CatchUp})
}

func (c *Controller) writeCA(ctx context.Context) error {
	return webhookconfig.Run(ctx, webhookconfig.Options{
		Client: c.watching, Name: c.o.WebhookConfiguration, CA: c.o.CA, Changed: c.o.CAChanged, Logger: c.o.Logger,
		Loop: c.o.Loops.WebhookCA,
	})
}

func (c *Controller) publishCA(ctx context.Context) error {
	return servingca.Run(ctx, servingca.Options{
		Client: c.watching, Namespace: c.o.Namespace, CA: c.o.ServingCA, Changed: c.o.ServingCAChanged, Logger: c.o.Logger,
		Loop: c.o.Loops.PublishedCA,
	})
}
