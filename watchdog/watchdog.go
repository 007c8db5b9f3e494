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

// Limits of requests to the API server with the WatchedClusters. Probes are not limited here, since each sends only a
// few requests. If hundreds of clusters are lost at once, the watchdog must send thousands of requests before their
// nodes turn Unknown.
const (
	requestsPerSecond = 400
	requestsBurst     = 1000
	requestTimeout    = 10 * time.Second
)

// reporter is the reporting controller of events.
const reporter = mesh.OwnPrefix + "watchdog"

// Watchdog is one replica.
type Watchdog struct {
	o          Options
	listener   net.Listener
	places     descriptors.Shares
	config     *rest.Config // with a timeout
	client     kubernetes.Interface
	objects    rest.Interface // for group sonde.dev, has a timeout
	clusters   *watch.Store[*v1alpha1.WatchedCluster, record]
	shoots     *watch.Store[*gardener.Cluster, gardener.Record] // nil if Gardener's Clusters are not watched
	file       *v1alpha1.WatchedClusterSpec                     // nil without a file
	dependants *scale.Clients
	events     *events.Recorder
	registry   *prometheus.Registry
	checks     *health.Registry
	metrics    *metrics
	fleet      *fleet
	budget     *probe.Budget // shared by all clusters
}

// New returns a Watchdog that is already listening. Errors name the field of the Options.
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
	w.registry.MustRegister(buildinfo.Metric(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
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

// self returns the watchdog's own Deployment.
func (w *Watchdog) self() config.Self { return config.Self{Namespace: w.o.Namespace, Name: w.o.Name} }

// Uses of file descriptors.
const (
	usesOwn    = "files and connections to clusters"
	usesHealth = "health"
)

// shareDescriptors reserves descriptors for clusters, so that callers of the health endpoints cannot use all.
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
	if w.o.Gardener { // the file applies to many clusters, each of which is checked later
		namespace = ""
	}
	spec, err := config.ReadFile(w.o.File, namespace, w.o.Local, w.self())
	if err != nil {
		return &mesh.FieldError{Field: "File", Value: w.o.File, Err: err}
	}
	w.file = spec
	return nil
}

// connect creates the clients and stores. It does not send requests.
func (w *Watchdog) connect(config *rest.Config) error {
	config.QPS, config.Burst, config.UserAgent = requestsPerSecond, requestsBurst, "sonde-watchdog/"+w.o.Version
	watching, err := newClient(config, v1alpha1.GroupVersion, v1alpha1.AddToScheme, 0) // no timeout: a watch has no end
	if err != nil {
		return err
	}
	w.config = rest.CopyConfig(config)
	w.config.Timeout = requestTimeout
	if w.objects, err = newClient(config, v1alpha1.GroupVersion, v1alpha1.AddToScheme, requestTimeout); err != nil {
		return err
	}
	if w.client, err = kubernetes.NewForConfig(w.config); err != nil {
		return fmt.Errorf("create client for the API server: %w", err)
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

// addChecks adds the checks for liveness and readiness. A replica that does not lead can be ready, too.
func (w *Watchdog) addChecks() {
	w.checks.Add(health.Livez, health.Check{Name: "probes", Run: func(context.Context) error {
		return w.fleet.check(time.Now())
	}})
	w.checks.Add(health.Readyz, health.Check{Name: "synced", Run: func(context.Context) error { return w.missing() }})
	w.checks.Add(health.Readyz, health.Check{Name: "api-server", Informational: true, Run: func(context.Context) error {
		loss := w.lost()
		if loss.Err == nil {
			return nil
		}
		return fmt.Errorf("disconnected for %s: %w", time.Since(loss.Since).Round(time.Second), loss.Err)
	}})
}

// HealthAddress returns the address of the health endpoints.
func (w *Watchdog) HealthAddress() net.Addr { return w.listener.Addr() }

// Run runs until ctx ends, waits for scaling that has begun, and returns nil.
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

// watchChecks runs the checks even without probes, so that metrics and logs are current.
func (w *Watchdog) watchChecks(ctx context.Context) error {
	started := make(chan struct{})
	close(started)
	w.checks.Watch(ctx, started)
	return nil
}

func (w *Watchdog) serve(ctx context.Context) error {
	if err := health.Serve(ctx, w.listener, health.Handler(w.checks, health.Metrics(w.registry)),
		health.Limits{Connections: w.places[usesHealth]}); err != nil && !errors.Is(err, net.ErrClosed) {
		return err
	}
	return nil
}

// takePart takes part in the leader election.
func (w *Watchdog) takePart(ctx context.Context) error {
	return leader.Run(ctx, leader.Options{
		Client: w.client.CoordinationV1(), Namespace: w.o.Namespace, Lease: LeaseName, Identity: w.o.Replica,
		OldEpoch: secrets.New(w.client.CoreV1().Secrets(w.o.Namespace)), OldSecret: oldSecretName,
		Tasks: []leader.Task{w.fleet.lead}, Logger: w.o.Logger,
	})
}
