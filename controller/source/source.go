// Package source makes the objects of the mesh from Kubernetes objects: a Dataplane for each pod with our sidecar, and
// a Service for each port of a Kubernetes Service, with the endpoints of its EndpointSlices. It runs in every replica
// of the control plane, and writes nothing to the API server.
package source

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Builder receives the objects, under the name of the source. Its methods return at once. *meshview.Builder is one.
type Builder interface {
	Set(source string, o mesh.Object)
	Delete(source string, k mesh.Key)
	Synced(source string)
}

// latestTimeout bounds the API server's answer with its latest revision.
const latestTimeout = 2 * time.Second

// Options of a Source.
type Options struct {
	// Client of the API server, without a timeout: it watches. Required.
	Client kubernetes.Interface
	// Builder receives the objects. Required.
	Builder Builder
	// Name of the source for the Builder. Required.
	Name string
	// PodChanged is called after a pod with our sidecar was added (before is nil), changed or deleted (now is nil). It
	// must not block. Default: no call.
	PodChanged func(key watch.Key, before, now *Pod)
	// MeshChanged is called after the mesh of a namespace has changed. It must not block. Default: no call.
	MeshChanged func(namespace string)
	// Drains has the options for drains.
	Drains Drains
	// Held is called when proxies of a Service begin to keep serving although a node's removal or an administrator
	// drains them, and by TellDrains. It must not block. Default: no call.
	Held func(service watch.Key, uid types.UID, pods []string)
	// Drained is called when a node's removal or an administrator begins to drain a pod, and by TellDrains. It must not
	// block. Default: no call.
	Drained func(pod watch.Key, uid types.UID, why string)
	// Connected reports whether the agent of a proxy has a session, with any replica. Default: always false.
	Connected func(proxy mesh.ID) bool
	// Memory is the memory limit of this process in bytes. Each namespace may use a share of it. Default 512 MiB.
	Memory uint64
	// Registerer for the metrics sonde_objects_beyond_bounds, sonde_drain_* and sonde_frozen_endpoints. Default none.
	Registerer prometheus.Registerer
	// Logger, default none.
	Logger *slog.Logger
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// Source passes the objects of the cluster to a Builder, and keeps them up to date there.
type Source struct {
	o          Options
	pods       *watch.Store[*corev1.Pod, Pod]
	services   *watch.Store[*corev1.Service, service]
	slices     *watch.Store[*discoveryv1.EndpointSlice, slice]
	namespaces *watch.Store[*corev1.Namespace, Namespace]
	nodes      *watch.Store[*corev1.Node, Node]
	evictions  *evictions
	metrics    drainMetrics
	wake       run.Signal

	frozenMetrics frozenMetrics

	mu      sync.Mutex // guards the changes that watches have reported since the last derive
	missing int        // kinds that have not been read completely
	dirty   dirty
	byUID   map[types.UID]watch.Key
	// gone are deleted pods that may still be in a slice.
	gone map[podRef]struct{}
	// goneNodes are deleted nodes that still have a pod.
	goneNodes map[string]struct{}
	// evicting has, by pod and by the name of its EvictionRequest, who requests the eviction.
	evicting map[podRef]map[string]string
	// frozen are the zones to keep, see Freeze.
	frozen Kept
	// ignoreNodes says that the removal of a node does not drain its pods.
	ignoreNodes bool

	// What derive has passed on. Only one goroutine uses it.
	index  index
	passed map[watch.Key][]mesh.Key // by Service: its Services of the mesh
	proxy  map[watch.Key]mesh.Key   // by pod: its Dataplane
	held   map[watch.Key]serving    // by Service: its pods that keep serving
	drains map[watch.Key]*mesh.Drain
	// drained has the last calls of Options.Drained, by pod.
	drained map[watch.Key]drained
	// keeping is the value of frozen for the current derive, kept the endpoints that the node controller has taken
	// away.
	keeping Kept
	kept    map[podRef]kept
	synced  bool
}

// dirty are the objects that must be derived again.
type dirty struct {
	pods, services, slices, namespaces map[watch.Key]struct{}
	// refs identify the pods' current and former instances.
	refs map[podRef]struct{}
	// nodes are the names of nodes.
	nodes map[string]struct{}
	// held says that Options.Held and Drained must be called for all, see TellDrains.
	held bool
}

func newDirty() dirty {
	return dirty{
		pods: map[watch.Key]struct{}{}, services: map[watch.Key]struct{}{}, slices: map[watch.Key]struct{}{},
		namespaces: map[watch.Key]struct{}{}, refs: map[podRef]struct{}{}, nodes: map[string]struct{}{},
	}
}

// New returns a Source. Nothing is read before Run.
func New(o Options) *Source {
	if o.PodChanged == nil {
		o.PodChanged = func(watch.Key, *Pod, *Pod) {}
	}
	if o.Held == nil {
		o.Held = func(watch.Key, types.UID, []string) {}
	}
	if o.Drained == nil {
		o.Drained = func(watch.Key, types.UID, string) {}
	}
	if o.MeshChanged == nil {
		o.MeshChanged = func(string) {}
	}
	if o.Connected == nil {
		o.Connected = func(mesh.ID) bool { return false }
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Source{
		o: o, wake: run.NewSignal(), missing: 5, dirty: newDirty(), byUID: map[types.UID]watch.Key{},
		gone: map[podRef]struct{}{}, index: newIndex(), passed: map[watch.Key][]mesh.Key{}, proxy: map[watch.Key]mesh.Key{},
		goneNodes: map[string]struct{}{}, evicting: map[podRef]map[string]string{}, held: map[watch.Key]serving{},
		drains: map[watch.Key]*mesh.Drain{}, drained: map[watch.Key]drained{}, metrics: newDrainMetrics(o.Registerer),
		ignoreNodes: o.Drains.IgnoreNodes, kept: map[podRef]kept{}, frozenMetrics: newFrozenMetrics(o.Registerer),
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(beyondMetric{s})
	}
	share := watch.ShareOf(o.Memory)
	s.pods = watch.New(watch.Kind[*corev1.Pod, Pod]{
		Client: o.Client.CoreV1().RESTClient(), Resource: "pods", Labels: mesh.LabelMesh, New: &corev1.Pod{}, Share: podShare(share),
		Record: readPod, Changed: s.podChanged, Synced: s.kindSynced,
	})
	s.services = watch.New(watch.Kind[*corev1.Service, service]{
		Client: o.Client.CoreV1().RESTClient(), Resource: "services", New: &corev1.Service{}, Share: serviceShare(share),
		Record: readService, Synced: s.kindSynced,
		Changed: func(key watch.Key, before, now *service) {
			s.noteProblem("Service", key, before.wrong(), now.wrong())
			s.mark(func(d *dirty) { d.services[key] = struct{}{} })
		},
	})
	s.slices = watch.New(watch.Kind[*discoveryv1.EndpointSlice, slice]{
		Client: o.Client.DiscoveryV1().RESTClient(), Resource: "endpointslices", New: &discoveryv1.EndpointSlice{}, Share: sliceShare(share),
		Record: readSlice, Synced: s.kindSynced,
		Changed: func(key watch.Key, before, now *slice) {
			s.noteProblem("EndpointSlice", key, before.wrong(), now.wrong())
			s.mark(func(d *dirty) { d.slices[key] = struct{}{} })
		},
	})
	s.namespaces = watch.New(watch.Kind[*corev1.Namespace, Namespace]{
		Client: o.Client.CoreV1().RESTClient(), Resource: "namespaces", New: &corev1.Namespace{},
		Record:  readNamespace,
		Synced:  s.kindSynced,
		Changed: s.namespaceChanged,
	})
	s.nodes = watch.New(watch.Kind[*corev1.Node, Node]{
		Client: o.Client.CoreV1().RESTClient(), Resource: "nodes", New: &corev1.Node{},
		Record: o.Drains.readNode, Changed: s.nodeChanged, Synced: s.kindSynced,
	})
	s.evictions = s.newEvictions(share / 8) // they are small
	return s
}

// Run follows the cluster until ctx ends, and then returns nil.
func (s *Source) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.pods.Run(ctx) })
	group.Go(func() error { return s.services.Run(ctx) })
	group.Go(func() error { return s.slices.Run(ctx) })
	group.Go(func() error { return s.namespaces.Run(ctx) })
	group.Go(func() error { return s.nodes.Run(ctx) })
	group.Go(func() error { return s.followEvictions(ctx) })
	group.Go(func() error {
		recheck := time.NewTicker(recheckEvery)
		defer recheck.Stop()
		for {
			select {
			case <-ctx.Done():
				return nil
			case <-recheck.C:
				s.recheck()
			case <-s.wake:
				s.o.Loop.Begin()
				s.derive()
				s.o.Loop.End()
			}
		}
	})
	return group.Wait()
}

// Pod returns the pod with this UID and its key, or nil without our sidecar.
func (s *Source) Pod(uid types.UID) (watch.Key, *Pod) {
	s.mu.Lock()
	key, ok := s.byUID[uid]
	s.mu.Unlock()
	if !ok {
		return watch.Key{}, nil
	}
	p := s.pods.Get(key)
	if p == nil || p.UID != uid {
		return watch.Key{}, nil
	}
	return key, p
}

// PodNamed returns the pod of that name, or nil without our sidecar.
func (s *Source) PodNamed(key watch.Key) *Pod { return s.pods.Get(key) }

// ProxyOf returns the proxy of a pod, "" if the pod is unknown.
func (s *Source) ProxyOf(key watch.Key) mesh.ID {
	p := s.pods.Get(key)
	if p == nil {
		return ""
	}
	return p.id(key)
}

// Missing returns which kinds have not been read yet, and why; nil once all have been read.
func (s *Source) Missing() error {
	return errors.Join(s.namespaces.Missing(), s.nodes.Missing(), s.pods.Missing(), s.services.Missing(),
		s.slices.Missing())
}

// Lost returns since when the watch of any kind has been disconnected, zero if all are connected.
func (s *Source) Lost() watch.Loss {
	return watch.First(s.namespaces.Lost(), s.pods.Lost(), s.services.Lost(), s.slices.Lost(), s.nodes.Lost())
}

// PodRevision returns the revision up to which the pods of the mesh were read.
func (s *Source) PodRevision() watch.Revision { return s.pods.Revision() }

// LatestRevision asks the API server for its latest revision.
func (s *Source) LatestRevision(ctx context.Context) (uint64, error) {
	ctx, cancel := context.WithTimeout(ctx, latestTimeout)
	defer cancel()
	list, err := s.o.Client.CoreV1().Pods(metav1.NamespaceAll).List(ctx,
		metav1.ListOptions{LabelSelector: mesh.LabelMesh, Limit: 1})
	if err != nil {
		return 0, fmt.Errorf("list a pod: %w", err)
	}
	latest, err := strconv.ParseUint(list.ResourceVersion, 10, 64)
	if err != nil {
		return 0, fmt.Errorf("list a pod: resourceVersion: %w", err)
	}
	return latest, nil
}

func (s *Source) podChanged(key watch.Key, before, now *Pod) {
	s.noteProblem("Pod", key, before.wrong(), now.wrong())
	s.mark(func(d *dirty) {
		if before != nil && now != nil && before.sameButReadiness(now) {
			n := s.nodes.Get(watch.Key{Name: now.Node})
			// Otherwise only the slice decides.
			if before.Marked || now.Marked || before.WholeRestart != now.WholeRestart || n != nil && n.Unknown {
				d.refs[podRef{now.UID, key}] = struct{}{}
			}
			return
		}
		d.pods[key] = struct{}{}
		if before != nil {
			was := podRef{before.UID, key}
			delete(s.byUID, before.UID)
			d.refs[was], s.gone[was] = struct{}{}, struct{}{}
		}
		if now != nil {
			is := podRef{now.UID, key}
			s.byUID[now.UID], d.refs[is] = key, struct{}{}
			delete(s.gone, is)
		}
	})
	s.o.PodChanged(key, before, now)
}

func (s *Source) kindSynced() {
	s.mark(func(*dirty) { s.missing-- })
}

// mark records a change, and wakes derive.
func (s *Source) mark(change func(*dirty)) {
	s.mu.Lock()
	change(&s.dirty)
	s.mu.Unlock()
	s.wake.Set()
}

// take returns the changes. It returns false until all kinds have been read, since earlier results would have to be
// revoked.
func (s *Source) take() (dirty, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.missing > 0 {
		return dirty{}, false
	}
	d := s.dirty
	s.dirty, s.keeping = newDirty(), s.frozen
	return d, true
}

// derive passes on the changes. A Dataplane is added before the Services that refer to it, and removed after them.
func (s *Source) derive() {
	d, ok := s.take()
	if !ok {
		return
	}
	s.index.update(d, s.slices.Get)
	for key := range d.slices {
		s.index.affected(key, &d)
	}
	if !s.synced {
		s.missNodes()
	}
	s.podsOfNodes(&d)
	s.servicesOfNodes(&d)
	for ref := range d.refs {
		s.index.servicesOfPod(ref, &d)
	}
	if len(d.namespaces) > 0 {
		s.servicesOfNamespaces(&d)
	}
	s.hold(&d)
	s.tellDrained(&d)
	var gone []mesh.Key
	for _, key := range sorted(d.pods) {
		if old, ended := s.derivePod(key); ended {
			gone = append(gone, old)
		}
	}
	for _, key := range sorted(d.services) {
		s.deriveService(key)
	}
	for _, key := range gone {
		s.o.Builder.Delete(s.o.Name, key)
	}
	s.forget(&d)
	s.forgetKept()
	if !s.synced {
		s.synced = true
		s.o.Logger.Info("cluster read", "pods", s.pods.Len(), "services", s.services.Len(), "endpointSlices", s.slices.Len())
		s.o.Builder.Synced(s.o.Name)
	}
}

// servicesOfNamespaces adds to d the Services of its namespaces. It iterates over all Services, since namespaces seldom
// change.
func (s *Source) servicesOfNamespaces(d *dirty) {
	for key := range s.passed {
		if _, changed := d.namespaces[watch.Key{Name: key.Namespace}]; changed {
			d.services[key] = struct{}{}
		}
	}
}

// derivePod passes on the Dataplane of a pod. It returns the key of a Dataplane that must be removed.
func (s *Source) derivePod(key watch.Key) (mesh.Key, bool) {
	old, had := s.proxy[key]
	var d *mesh.Dataplane
	if p := s.pods.Get(key); p != nil {
		d = dataplaneOf(key, p, s.index.portsOf(podRef{p.UID, key}), s.drains[key])
	}
	if d == nil {
		delete(s.proxy, key)
		return old, had
	}
	s.proxy[key] = d.Key()
	s.o.Builder.Set(s.o.Name, d)
	return old, had && old != d.Key()
}

// forget drops deleted pods that are in no slice.
func (s *Source) forget(d *dirty) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for ref := range s.gone {
		if !s.index.names(ref) {
			delete(s.gone, ref)
		}
	}
	s.forgetNodes(d)
}

// podOf finds the pod of an endpoint. A pod beyond its namespace's share is treated as gone, since its Envoy may have
// no listener.
func (s *Source) podOf(ref podRef) (p *Pod, gone, drains bool) {
	if p = s.pods.Get(ref.key); p != nil && p.UID == ref.uid {
		return p, p.Ended || p.Beyond, s.drains[ref.key].Applies()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, gone = s.gone[ref]
	return nil, gone, false
}

// deriveService passes on the Services of the mesh for a Service of Kubernetes.
func (s *Source) deriveService(key watch.Key) {
	var now []mesh.Key
	if record := s.services.Get(key); record != nil {
		var parts []*slice
		for _, name := range s.index.slicesOf(key) {
			if part := s.slices.Get(name); part != nil {
				parts = append(parts, part)
			}
		}
		for _, o := range servicesOf(s.Namespace(key.Namespace).Mesh(), key, record, parts, finder{s.podOf, s.keep}) {
			now = append(now, o.Key())
			s.o.Builder.Set(s.o.Name, o)
		}
	}
	for _, old := range s.passed[key] {
		if !slices.Contains(now, old) {
			s.o.Builder.Delete(s.o.Name, old)
		}
	}
	if len(now) == 0 {
		delete(s.passed, key)
	} else {
		s.passed[key] = now
	}
}
