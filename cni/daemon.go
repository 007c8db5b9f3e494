// Package cni is the daemon of the CNI plugin, one per node: it keeps the plugin installed, and redirects the
// connections of the node's pods to their sidecars. See docs/decisions/085-cni.md.
package cni

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cni/install"
	"github.com/sonde-mesh/sonde/cni/pods"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/buildinfo"
	"github.com/sonde-mesh/sonde/internal/kubeconfig"
	"github.com/sonde-mesh/sonde/internal/localpeer"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// repairEvery is the interval of checks of pods without verified rules.
	repairEvery = 5 * time.Second
	// askTimeout bounds a request to the API server, within the plugin's timeout.
	askTimeout = 8 * time.Second
	// requestsPerSecond and requestsBurst limit requests about pods that the watch does not have yet, for example when all
	// pods of a node start at once.
	requestsPerSecond, requestsBurst = 50, 200
	// endTimeout bounds the work of the daemon after its context has ended.
	endTimeout = 10 * time.Second
	// deletionTimeout bounds the wait for the watch when the daemon may not read its own DaemonSet.
	deletionTimeout = 5 * time.Second
)

// Daemon is the daemon on one node.
type Daemon struct {
	o          Options
	listener   *net.UnixListener
	health     net.Listener
	client     kubernetes.Interface
	pods       *watch.Store[*corev1.Pod, pods.Record]
	own        *watch.Store[*appsv1.DaemonSet, deleted]
	redirector *pods.Redirector
	installer  *install.Installer
	installed  atomic.Pointer[install.State]
	// gone means that the daemon's own DaemonSet has been deleted.
	gone     atomic.Bool
	repair   run.Signal
	changed  run.Signal
	registry *prometheus.Registry
	checks   *health.Registry
}

// deleted reports whether a DaemonSet is being deleted.
type deleted bool

// New returns a Daemon that is already listening. Errors name the field of the Options.
func New(ctx context.Context, o Options) (*Daemon, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if err := o.Validate(); err != nil {
		return nil, err
	}
	config, err := o.restConfig()
	if err != nil {
		return nil, err
	}
	config.QPS, config.Burst, config.UserAgent = requestsPerSecond, requestsBurst, "sonde-cni/"+o.Version
	d := &Daemon{o: o, repair: run.NewSignal(), changed: run.NewSignal(), registry: prometheus.NewRegistry()}
	if d.client, err = kubernetes.NewForConfig(config); err != nil {
		return nil, fmt.Errorf("create client for the API server: %w", err)
	}
	d.follow()
	d.addMetrics()
	if d.health, err = new(net.ListenConfig).Listen(ctx, "tcp", o.healthAddress()); err != nil {
		at := mesh.FieldError{Field: "HealthAddress", Value: o.HealthAddress, Allowed: mesh.AllowedOwnHostPort}
		return nil, mesh.ListenError(at, at, err)
	}
	if d.listener, err = listen(o.Socket); err != nil {
		return nil, errors.Join(&mesh.FieldError{Field: "Socket", Value: o.Socket, Err: err}, d.health.Close())
	}
	return d, nil
}

func (o *Options) restConfig() (*rest.Config, error) {
	if o.Kubeconfig == "" {
		config, err := rest.InClusterConfig()
		if err != nil {
			return nil, &mesh.FieldError{Field: "Kubeconfig", Err: err}
		}
		return config, nil
	}
	config, err := clientcmd.BuildConfigFromFlags("", o.Kubeconfig)
	if err != nil {
		return nil, &mesh.FieldError{Field: "Kubeconfig", Value: o.Kubeconfig, Err: kubeconfig.Explain(err, o.Kubeconfig)}
	}
	return config, nil
}

// follow creates the stores for the node's pods and the daemon's own DaemonSet. They do not send requests yet.
func (d *Daemon) follow() {
	d.pods = watch.New(watch.Kind[*corev1.Pod, pods.Record]{
		Client: d.client.CoreV1().RESTClient(), Resource: "pods", New: &corev1.Pod{}, Record: pods.Read,
		Fields:  fields.OneTermEqualSelector("spec.nodeName", d.o.Node).String(),
		Changed: func(watch.Key, *pods.Record, *pods.Record) {}, // the container runtime calls the plugin when a pod starts
		Synced:  d.repair.Set,
	})
	d.own = watch.New(watch.Kind[*appsv1.DaemonSet, deleted]{
		Client: d.client.AppsV1().RESTClient(), Resource: "daemonsets", Namespace: d.o.Namespace, New: &appsv1.DaemonSet{},
		Fields: fields.OneTermEqualSelector("metadata.name", d.o.DaemonSet).String(),
		Record: func(o *appsv1.DaemonSet) (deleted, bool) { return o.DeletionTimestamp != nil, true },
		Changed: func(_ watch.Key, _, now *deleted) {
			d.gone.Store(now == nil || bool(*now))
		},
		Synced: func() {},
	})
	d.redirector = &pods.Redirector{Source: source{d}, Kernel: pods.Namespaces{}, Sandboxes: pods.Cached(d.o.CacheDir),
		Logger: d.o.Logger, Metrics: pods.NewMetrics(d.registry)}
	d.installed.Store(&install.State{Err: errNotYet})
}

var errNotYet = errors.New("the pods of the node have not been read yet")

// addMetrics adds metrics and health checks.
func (d *Daemon) addMetrics() {
	d.registry.MustRegister(buildinfo.Metric(), collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	writes := prometheus.NewCounter(prometheus.CounterOpts{
		Name: "sonde_cni_config_writes_total",
		Help: "Number of times that the plugin was added to the CNI configuration; more than one per node means that " +
			"another program writes it.",
	})
	ready := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sonde_cni_ready", Help: "1 if container runtimes call the plugin on this node, and the daemon has read the node's pods; otherwise 0.",
	}, func() float64 {
		if d.notReady() == nil {
			return 1
		}
		return 0
	})
	d.registry.MustRegister(writes, ready)
	d.installer = install.New(install.Options{
		ConfigDir: d.o.ConfigDir, PluginDir: d.o.PluginDir, Plugin: d.o.Plugin, Socket: d.o.Socket, Logger: d.o.Logger,
		Changed: func(s install.State) {
			d.installed.Store(&s)
			d.changed.Set()
		},
	}, writes.Inc)
	d.checks = health.New(health.Options{Logger: d.o.Logger, Registerer: d.registry, OwnAddress: localpeer.Is})
	d.checks.Add(health.Readyz, health.Check{Name: "installed", Run: func(context.Context) error { return d.notReady() }})
}

// notReady returns why pods of this node would start without redirection, nil if they would not.
func (d *Daemon) notReady() error {
	return errors.Join(d.pods.Missing(), d.installed.Load().Err)
}

// Run serves until ctx ends. The plugin remains installed, unless the DaemonSet has been deleted.
func (d *Daemon) Run(ctx context.Context) error {
	defer func() { _ = d.listener.Close() }()
	// The watch outlives ctx: its report that the DaemonSet is deleted may come after the order to stop.
	watching, stop := context.WithCancel(context.WithoutCancel(ctx))
	watched := make(chan error, 1)
	go func() { watched <- d.own.Run(watching) }()
	err := d.run(ctx)
	if err == nil {
		err = d.end(watching)
	}
	stop()
	return errors.Join(err, <-watched)
}

// run serves until ctx ends.
func (d *Daemon) run(ctx context.Context) error {
	group, running := errgroup.WithContext(ctx)
	group.Go(func() error { return d.pods.Run(running) })
	group.Go(func() error { return d.serve(running) })
	group.Go(func() error { return d.repairAll(running) })
	group.Go(func() error { return d.publish(running) })
	group.Go(func() error {
		return health.Serve(running, d.health, health.Handler(d.checks, health.Metrics(d.registry)), health.Limits{})
	})
	group.Go(func() error {
		// The node is not ready while its pods are unknown: each ADD would wait for the API server.
		for range run.Every(running, time.Second) {
			if d.pods.Missing() == nil {
				return d.installer.Run(running)
			}
		}
		return nil
	})
	return group.Wait()
}

// repairAll writes missing rules.
func (d *Daemon) repairAll(ctx context.Context) error {
	for range run.EveryOr(ctx, repairEvery, d.repair) {
		if _, err := d.redirector.Repair(); err != nil {
			d.o.Logger.Error("failed to check pods for missing redirection, retrying", "err", err)
		}
	}
	return nil
}

// end uninstalls the plugin if the DaemonSet is deleted. If the daemon is only replaced, or the API server does not
// respond, the plugin remains: the next daemon repairs pods that start until then.
func (d *Daemon) end(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, endTimeout)
	defer cancel()
	own, err := d.client.AppsV1().DaemonSets(d.o.Namespace).Get(ctx, d.o.DaemonSet, metav1.GetOptions{})
	switch {
	case err == nil:
		d.gone.Store(own.DeletionTimestamp != nil)
	case apierrors.IsNotFound(err):
		d.gone.Store(true)
	default: // the daemon's rights may be deleted, too
		d.awaitDeletion(ctx)
		d.o.Logger.Warn("failed to read the daemon's own DaemonSet", "err", err, "deleted", d.gone.Load())
	}
	if !d.gone.Load() {
		return nil
	}
	d.o.Logger.Info("the DaemonSet is deleted, uninstalling the plugin")
	err = d.installer.Uninstall()
	gone := timed(condition(errUninstalled, nil), corev1.NodeCondition{}, metav1.Now())
	if conditionErr := d.writeCondition(ctx, gone); conditionErr != nil {
		d.o.Logger.Warn("failed to write the node's condition", "err", conditionErr)
	}
	return err
}

// awaitDeletion waits until the watch has reported that the DaemonSet is deleted, at most for deletionTimeout.
func (d *Daemon) awaitDeletion(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, deletionTimeout)
	defer cancel()
	for range run.Every(ctx, 50*time.Millisecond) {
		if d.gone.Load() {
			return
		}
	}
}

var errUninstalled = errors.New("uninstalled the plugin")

// source reads pods from the API server.
type source struct{ d *Daemon }

var _ pods.Source = source{}

// Pods implements pods.Source.
func (s source) Pods() (all map[pods.Key]pods.Record, complete bool) {
	if s.d.pods.Missing() != nil {
		return nil, false
	}
	all = map[pods.Key]pods.Record{}
	for _, key := range s.d.pods.Keys() {
		if r := s.d.pods.Get(key); r != nil {
			all[pods.Key(key)] = *r
		}
	}
	return all, true
}

// Pod implements pods.Source.
func (s source) Pod(key pods.Key) (pods.Record, bool) {
	if r := s.d.pods.Get(watch.Key(key)); r != nil {
		return *r, true
	}
	return pods.Record{}, false
}

// Ask implements pods.Source.
func (s source) Ask(ctx context.Context, key pods.Key) (pods.Record, bool, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	pod, err := s.d.client.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return pods.Record{}, false, nil
	case err != nil:
		return pods.Record{}, false, fmt.Errorf("read pod: %w", err)
	}
	r, _ := pods.Read(pod)
	return r, true, nil
}
