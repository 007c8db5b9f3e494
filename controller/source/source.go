// Package source makes the objects of the mesh from those of Kubernetes: a Dataplane of each pod with our sidecar, and a Service of
// each port of a Service, with the endpoints that its EndpointSlices name. Nothing is written to the API server. It runs in every
// replica of the control plane.
package source

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Builder receives the objects, under the name of the source. Its methods return at once. *meshview.Builder implements it.
type Builder interface {
	Set(source string, o mesh.Object)
	Delete(source string, k mesh.Key)
	Synced(source string)
}

// Options of a Source.
type Options struct {
	// Client of the API server, without a timeout: it watches. Required.
	Client kubernetes.Interface
	// Builder receives the objects. Required.
	Builder Builder
	// Name of the source for the Builder. Required.
	Name string
	// PodChanged is called after a pod with our sidecar has come (before is nil), changed or gone (now is nil). It must not block.
	// Default none.
	PodChanged func(key watch.Key, before, now *Pod)
	// MeshChanged is called after the mesh of a namespace has changed. It must not block. Default none.
	MeshChanged func(namespace string)
	// Drains says which nodes go, and how many proxies must serve on.
	Drains Drains
	// Held is called when proxies of a Service begin to serve on although their nodes or an administrator want them to drain. It must not
	// block. TellDrains has it called again. Default none.
	Held func(service watch.Key, uid types.UID, pods []string)
	// Drained is called when a node or an administrator begins to keep new traffic from a pod, and by TellDrains. It must not block. Default none.
	Drained func(pod watch.Key, uid types.UID, why string)
	// Connected reports whether the agent of a proxy has a session, with any replica. Default: none has.
	Connected func(proxy mesh.ID) bool
	// Memory is how many bytes this process may use, of which a namespace has a share. Default 512 MiB.
	Memory uint64
	// Registerer for the metrics sonde_objects_beyond_bounds, sonde_drain_* and sonde_frozen_endpoints. Default none.
	Registerer prometheus.Registerer
	// Logger, default none.
	Logger *slog.Logger
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// Source keeps a Builder in step with the cluster.
type Source struct {
	o          Options
	pods       *watch.Store[*corev1.Pod, Pod]
	services   *watch.Store[*corev1.Service, service]
	slices     *watch.Store[*discoveryv1.EndpointSlice, slice]
	namespaces *watch.Store[*corev1.Namespace, Namespace]
	nodes      *watch.Store[*corev1.Node, Node]
	metrics    drainMetrics
	wake       run.Signal

	frozenMetrics frozenMetrics

	mu      sync.Mutex // guards what watches have changed since the last derive
	missing int        // kinds whose first objects are not all there
	dirty   dirty
	byUID   map[types.UID]watch.Key
	// gone are pods that are no more, while a slice may still name them.
	gone map[podRef]struct{}
	// goneNodes are nodes that are no more, while a pod is still on one.
	goneNodes map[string]struct{}
	// frozen is what is to be kept, see Freeze.
	frozen Kept
	// ignoreNodes says that no node is a reason to drain.
	ignoreNodes bool

	// What derive has passed on. It is for one goroutine.
	index  index
	passed map[watch.Key][]mesh.Key // by Service: its Services of the mesh
	proxy  map[watch.Key]mesh.Key   // by pod: its Dataplane
	held   map[watch.Key]serving    // by Service: which of its pods serve on
	drains map[watch.Key]*mesh.Drain
	// drained is what Options.Drained was told of pods.
	drained map[watch.Key]drained
	// keeping is the frozen by which is derived, kept the endpoints that were taken away.
	keeping Kept
	kept    map[podRef]kept
	synced  bool
}

// dirty are the objects that have to be derived again.
type dirty struct {
	pods, services, slices, namespaces map[watch.Key]struct{}
	// refs are what the pods are or were.
	refs map[podRef]struct{}
	// nodes are by name.
	nodes map[string]struct{}
	// held says that Options.Held and Drained have to be told of all, see TellDrains.
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
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Source{
		o: o, wake: run.NewSignal(), missing: 5, dirty: newDirty(), byUID: map[types.UID]watch.Key{},
		gone: map[podRef]struct{}{}, index: newIndex(), passed: map[watch.Key][]mesh.Key{}, proxy: map[watch.Key]mesh.Key{},
		goneNodes: map[string]struct{}{}, held: map[watch.Key]serving{}, drains: map[watch.Key]*mesh.Drain{}, drained: map[watch.Key]drained{}, metrics: newDrainMetrics(o.Registerer),
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

// Pod returns the pod with a UID that has our sidecar, and its name; nil if there is none.
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

// PodNamed returns the pod of that name that has our sidecar, nil if there is none.
func (s *Source) PodNamed(key watch.Key) *Pod { return s.pods.Get(key) }

// ProxyOf returns the proxy of a pod, "" if the pod is unknown.
func (s *Source) ProxyOf(key watch.Key) mesh.ID {
	p := s.pods.Get(key)
	if p == nil {
		return ""
	}
	return p.id(key)
}

// Missing returns which kinds have not been read yet, and why; nil once all have.
func (s *Source) Missing() error {
	return errors.Join(s.namespaces.Missing(), s.nodes.Missing(), s.pods.Missing(), s.services.Missing(), s.slices.Missing())
}

// Lost returns since when the API server has not been heard about some kind, zero while it is.
func (s *Source) Lost() watch.Loss {
	return watch.First(s.namespaces.Lost(), s.pods.Lost(), s.services.Lost(), s.slices.Lost(), s.nodes.Lost())
}

// PodRevision returns how far the pods of the mesh were read.
func (s *Source) PodRevision() watch.Revision { return s.pods.Revision() }

func (s *Source) podChanged(key watch.Key, before, now *Pod) {
	s.noteProblem("Pod", key, before.wrong(), now.wrong())
	s.mark(func(d *dirty) {
		if before != nil && now != nil && before.sameButReadiness(now) {
			n := s.nodes.Get(watch.Key{Name: now.Node})
			if before.Marked || now.Marked || before.WholeRestart != now.WholeRestart || n != nil && n.Unknown { // else the slice alone says it
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

// mark records a change, and has it derived.
func (s *Source) mark(change func(*dirty)) {
	s.mu.Lock()
	change(&s.dirty)
	s.mu.Unlock()
	s.wake.Set()
}

// take returns what has changed, and false while not every kind is there: what the first would make would be taken back.
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

// derive passes on what has changed. A Dataplane comes before the Services that name it, and goes after them.
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

// servicesOfNamespaces adds to d the Services of its namespaces. It looks at all Services, since namespaces seldom change.
func (s *Source) servicesOfNamespaces(d *dirty) {
	for key := range s.passed {
		if _, changed := d.namespaces[watch.Key{Name: key.Namespace}]; changed {
			d.services[key] = struct{}{}
		}
	}
}

// derivePod passes on the Dataplane of a pod. It returns the key of the Dataplane that the pod had and has no more.
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

// forget drops the pods that no slice names any more.
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

// podOf finds the pod of an endpoint. One that does not count is as one that is gone: its Envoy may have no listener.
func (s *Source) podOf(ref podRef) (p *Pod, gone, drains bool) {
	if p = s.pods.Get(ref.key); p != nil && p.UID == ref.uid {
		return p, p.Ended || p.Beyond, s.drains[ref.key].Applies()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	_, gone = s.gone[ref]
	return nil, gone, false
}

// deriveService passes on the Services of the mesh that a Service is.
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
