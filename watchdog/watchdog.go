package watchdog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/leader"
	"github.com/sonde-mesh/sonde/controller/secrets"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/descriptors"
	"github.com/sonde-mesh/sonde/internal/kubeconfig"
	"github.com/sonde-mesh/sonde/internal/localpeer"
	"github.com/sonde-mesh/sonde/watchdog/config"
	"github.com/sonde-mesh/sonde/watchdog/gardener"
	"github.com/sonde-mesh/sonde/watchdog/probe"
	"github.com/sonde-mesh/sonde/watchdog/scale"
)

// Requests to the API server with the WatchedClusters, of each of the clients. Probes of clusters are not limited here: each asks a handful. If
// hundreds of clusters are lost at once, thousands of requests have to be sent before their nodes are Unknown.
const (
	requestsPerSecond = 400
	requestsBurst     = 1000
	requestTimeout    = 10 * time.Second
)

// reporter is who reports events.
const reporter = mesh.OwnPrefix + "watchdog"

// Watchdog is one replica.
type Watchdog struct {
	o          Options
	listener   net.Listener
	places     descriptors.Shares
	config     *rest.Config // with a timeout
	client     kubernetes.Interface
	objects    rest.Interface // of group sonde.dev, with a timeout
	clusters   *watch.Store[*v1alpha1.WatchedCluster, record]
	shoots     *watch.Store[*gardener.Cluster, gardener.Record] // nil if Gardener's Clusters are not followed
	file       *v1alpha1.WatchedClusterSpec                     // nil for none
	dependants *scale.Clients
	events     *events.Recorder
	registry   *prometheus.Registry
	checks     *health.Registry
	metrics    *metrics
	fleet      *fleet
	budget     *probe.Budget // of all clusters
}

// New returns a Watchdog that listens already. Each error names the field of the Options.
func New(ctx context.Context, o Options) (*Watchdog, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	w := &Watchdog{o: o, registry: prometheus.NewRegistry(), budget: probe.NewBudget()}
	if err := w.shareDescriptors(); err != nil {
		return nil, err
	}
	if err := w.readFile(); err != nil {
		return nil, err
	}
	config, err := w.restConfig()
	if err != nil {
		return nil, err
	}
	if err := w.connect(config); err != nil {
		return nil, err
	}
	w.registry.MustRegister(buildinfo.Metric(), collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	w.checks = health.New(health.Options{Logger: o.Logger, Registerer: w.registry, OwnAddress: localpeer.Is})
	w.fleet = newFleet(w)
	w.metrics = newMetrics(w.registry, w.fleet)
	w.addChecks()
	address, err := listenAddress(o.HealthAddress)
	if err != nil {
		return nil, err
	}
	listen := o.Listen
	if listen == nil {
		listen = new(net.ListenConfig).Listen
	}
	if w.listener, err = listen(ctx, "tcp", address); err != nil {
		at := mesh.FieldError{Field: "HealthAddress", Value: o.HealthAddress, Allowed: mesh.AllowedOwnHostPort}
		return nil, mesh.ListenError(at, at, err)
	}
	return w, nil
}

// self is the Deployment of the watchdog.
func (w *Watchdog) self() config.Self { return config.Self{Namespace: w.o.Namespace, Name: w.o.Name} }

// Uses of descriptors.
const (
	usesOwn    = "files and connections to clusters"
	usesHealth = "health"
)

// shareDescriptors leaves to the clusters what callers of the health endpoints might take.
func (w *Watchdog) shareDescriptors() (err error) {
	limit := cmp.Or(w.o.OpenFiles, math.MaxInt32)
	uses := []descriptors.Use{{Name: usesOwn, Least: 160}, {Name: usesHealth, Least: 32, Most: health.MaxConnections}}
	if w.places, err = descriptors.Share(limit, uses...); err == nil {
		w.places.Warn(w.o.Logger, limit, uses...)
	}
	return err
}

func (w *Watchdog) readFile() error {
	if w.o.File == "" {
		return nil
	}
	namespace := w.o.Namespace
	if w.o.Gardener { // it is about many, of which each is checked
		namespace = ""
	}
	spec, err := config.ReadFile(w.o.File, namespace, w.o.Local, w.self())
	if err != nil {
		return &mesh.FieldError{Field: "File", Value: w.o.File, Err: err}
	}
	w.file = spec
	return nil
}

// connect makes the clients and the stores. Nothing is asked yet.
func (w *Watchdog) connect(config *rest.Config) error {
	config.QPS, config.Burst, config.UserAgent = requestsPerSecond, requestsBurst, "sonde-watchdog/"+w.o.Version
	watching, err := newClient(config, v1alpha1.GroupVersion, v1alpha1.AddToScheme, 0) // a watch lasts
	if err != nil {
		return err
	}
	w.config = rest.CopyConfig(config)
	w.config.Timeout = requestTimeout
	if w.objects, err = newClient(config, v1alpha1.GroupVersion, v1alpha1.AddToScheme, requestTimeout); err != nil {
		return err
	}
	if w.client, err = kubernetes.NewForConfig(w.config); err != nil {
		return fmt.Errorf("make client of the API server: %w", err)
	}
	if w.dependants, err = scale.NewClients(w.config); err != nil {
		return err
	}
	w.events = events.NewAs(reporter, w.client.EventsV1(), w.o.Logger)
	w.clusters = watch.New(watch.Kind[*v1alpha1.WatchedCluster, record]{
		Client: watching, Resource: resource, New: &v1alpha1.WatchedCluster{}, Record: readRecord, Share: clusterShare(),
		Changed: func(key watch.Key, _, _ *record) {
			w.fleet.clusters.changed(key)
			if key.Name == w.o.FileCluster {
				w.fleet.shoots.changed(watch.Key{Name: key.Namespace})
			}
		},
		Synced: func() { w.fleet.synced.Set() },
	})
	if w.o.Gardener {
		return w.followShoots(config)
	}
	return nil
}

func (w *Watchdog) restConfig() (*rest.Config, error) {
	if w.o.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, &mesh.FieldError{Field: "Kubeconfig", Err: err}
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", w.o.Kubeconfig)
	if err != nil {
		return nil, &mesh.FieldError{Field: "Kubeconfig", Value: w.o.Kubeconfig, Err: kubeconfig.Explain(err, w.o.Kubeconfig)}
	}
	return config, nil
}

// addChecks adds what decides about liveness and readiness. A replica that does not lead is as ready as the one that does.
func (w *Watchdog) addChecks() {
	w.checks.Add(health.Livez, health.Check{Name: "probes", Run: func(context.Context) error { return w.fleet.check(time.Now()) }})
	w.checks.Add(health.Readyz, health.Check{Name: "synced", Run: func(context.Context) error { return w.missing() }})
	w.checks.Add(health.Readyz, health.Check{Name: "api-server", Informational: true, Run: func(context.Context) error {
		loss := w.lost()
		if loss.Err == nil {
			return nil
		}
		return fmt.Errorf("not heard for %s: %w", time.Since(loss.Since).Round(time.Second), loss.Err)
	}})
}

// HealthAddress returns where the health endpoints are.
func (w *Watchdog) HealthAddress() net.Addr { return w.listener.Addr() }

// Run runs until ctx ends, and then returns nil. What it has begun to scale has ended then.
func (w *Watchdog) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	tasks := []func(context.Context) error{w.clusters.Run, w.events.Run, w.takePart, w.serve, w.watchChecks}
	if w.shoots != nil {
		tasks = append(tasks, w.shoots.Run)
	}
	for _, task := range tasks {
		group.Go(func() error { return task(ctx) })
	}
	return group.Wait()
}

// watchChecks runs the checks, so that their metrics and the log are true without callers.
func (w *Watchdog) watchChecks(ctx context.Context) error {
	started := make(chan struct{})
	close(started)
	w.checks.Watch(ctx, started)
	return nil
}

func (w *Watchdog) serve(ctx context.Context) error {
	if err := health.ServeLimited(ctx, w.listener, health.Handler(w.checks, health.Metrics(w.registry)), health.Limits{Connections: w.places[usesHealth]}); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// takePart takes part in the election of the replica that watches.
func (w *Watchdog) takePart(ctx context.Context) error {
	return leader.Run(ctx, leader.Options{
		Client: w.client.CoordinationV1(), Namespace: w.o.Namespace, Lease: LeaseName, Identity: w.o.Replica,
		OldEpoch: secrets.New(w.client.CoreV1().Secrets(w.o.Namespace)), OldSecret: oldSecretName,
		Tasks: []leader.Task{w.fleet.lead}, Logger: w.o.Logger,
	})
}
