// Package objects reads the objects of group sonde.dev, and says in their status whether they are used.
package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// Builder receives the objects, under the name of the source. Its methods return at once. *meshview.Builder implements it.
type Builder interface {
	Set(source string, o mesh.Object)
	Delete(source string, k mesh.Key)
	Synced(source string)
}

// Options of Objects.
type Options struct {
	// Config of the API server, without a timeout. Timeout is that of requests, but not of watches. Required.
	Config  *rest.Config
	Timeout time.Duration
	// MeshOf returns the mesh of a namespace: that of its Dataplanes that have no label kuma.io/mesh. Required.
	MeshOf func(namespace string) string
	// Builder receives the valid objects. Required.
	Builder Builder
	// Name of the source for the Builder. Required.
	Name string
	// Secrets of the control plane's namespace keep that the default Mesh was made. Required.
	Secrets clientv1.SecretInterface
	// ProbesMode of Dataplanes that name none. Default unified.
	ProbesMode mesh.ProbesMode
	// Logger, default none.
	Logger *slog.Logger
	// Loop watches RunStatus. Default: none.
	Loop *heartbeat.Loop
}

// Objects keeps a Builder in step with the objects of group sonde.dev. One that is not valid keeps its last good content.
type Objects struct {
	o          Options
	client     rest.Interface // for all but watches
	meshes     *watch.Store[*v1alpha1.Mesh, record]
	dataplanes *watch.Store[*v1alpha1.Dataplane, record]
	wake       chan struct{}

	mu        sync.Mutex
	unwritten map[reference]struct{} // objects whose status has to be looked at
	missing   int                    // kinds whose first objects are not all there
	passed    map[reference]mesh.Key // what the Builder has
	invalid   map[reference]string   // what is wrong with others
	names     map[string]bool        // of the Meshes
}

// reference identifies an object.
type reference struct {
	resource string
	watch.Key
}

// record is what is kept of an object.
type record struct {
	object     mesh.Object // as it is written
	generation int64
	accepted   *metav1.Condition // its status now, nil if there is none
}

// New returns Objects. Nothing is read before Run.
func New(o Options) (*Objects, error) {
	watching, err := NewClient(o.Config, 0)
	if err != nil {
		return nil, err
	}
	client, err := NewClient(o.Config, o.Timeout)
	if err != nil {
		return nil, err
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s := &Objects{
		o: o, client: client, missing: 2, passed: map[reference]mesh.Key{}, names: map[string]bool{},
		wake: make(chan struct{}, 1), unwritten: map[reference]struct{}{}, invalid: map[reference]string{},
	}
	s.meshes = watch.New(watch.Kind[*v1alpha1.Mesh, record]{
		Client: watching, Resource: resourceMeshes, New: &v1alpha1.Mesh{}, Synced: s.kindSynced,
		Record: func(m *v1alpha1.Mesh) (record, bool) {
			return newRecord(&mesh.Mesh{Name: m.Name, Labels: m.Labels, Spec: *m.Spec.DeepCopy()}, m.Generation, m.Status), true
		},
		Changed: func(key watch.Key, _, _ *record) { s.changed(reference{resourceMeshes, key}) },
	})
	s.dataplanes = watch.New(watch.Kind[*v1alpha1.Dataplane, record]{
		Client: watching, Resource: resourceDataplanes, New: &v1alpha1.Dataplane{}, Synced: s.kindSynced,
		Record: func(d *v1alpha1.Dataplane) (record, bool) {
			return newRecord(dataplaneOf(d), d.Generation, d.Status), true
		},
		Changed: func(key watch.Key, _, _ *record) { s.changed(reference{resourceDataplanes, key}) },
	})
	return s, nil
}

const (
	resourceMeshes     = "meshes"
	resourceDataplanes = "dataplanes"
)

// NewClient returns a client of group sonde.dev.
func NewClient(config *rest.Config, timeout time.Duration) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("register group %s: %w", mesh.Group, err)
	}
	c := rest.CopyConfig(config)
	c.Timeout = timeout
	c.GroupVersion, c.APIPath = &v1alpha1.GroupVersion, "/apis"
	c.ContentType, c.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("make client of group %s: %w", mesh.Group, err)
	}
	return client, nil
}

// dataplaneOf returns the Dataplane that an object describes: its name is <name>.<namespace>, as that of a pod. Its mesh is "" for
// that of the namespace.
func dataplaneOf(d *v1alpha1.Dataplane) *mesh.Dataplane {
	return &mesh.Dataplane{
		Meta: mesh.Meta{Mesh: d.Labels[mesh.LabelMesh], Name: mesh.ObjectDataplane(d.Namespace, d.Name), Labels: d.Labels},
		Spec: *d.Spec.DeepCopy(),
	}
}

func newRecord(o mesh.Object, generation int64, status v1alpha1.Status) record {
	r := record{object: o, generation: generation}
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		copied := *c
		r.accepted = &copied
	}
	return r
}

// resolve returns the object that a record describes in the mesh, and all that is wrong with it.
func (s *Objects) resolve(ref reference, r *record) (mesh.Object, error) {
	switch written := r.object.(type) {
	case *mesh.Mesh:
		m := written.DeepCopy()
		m.SetDefaults()
		return m, m.Validate()
	case *mesh.Dataplane:
		d := written.DeepCopy()
		d.Mesh = cmp.Or(d.Mesh, s.o.MeshOf(ref.Namespace))
		d.ProbesMode = s.o.ProbesMode
		d.SetDefaults()
		return d, d.ValidateIn(ref.Namespace)
	}
	return nil, fmt.Errorf("resolve a %T", r.object) // there is no other kind
}

// MeshChanged has the Dataplanes of a namespace looked at again, since its mesh has changed. It does not block.
func (s *Objects) MeshChanged(namespace string) {
	for _, key := range s.dataplanes.Keys() {
		if key.Namespace == namespace {
			s.changed(reference{resourceDataplanes, key})
		}
	}
}

// Missing returns which kinds have not been read yet, and why; nil once all have.
func (s *Objects) Missing() error { return errors.Join(s.meshes.Missing(), s.dataplanes.Missing()) }

// Lost returns since when the API server has not been heard about some kind, zero while it is.
func (s *Objects) Lost() watch.Loss { return watch.First(s.meshes.Lost(), s.dataplanes.Lost()) }

// Problem is what is wrong with an object.
type Problem struct {
	// Resource, such as meshes, Namespace and Name identify the object.
	Resource, Namespace, Name string
	Text                      string
}

// Problems returns the objects that are not valid, sorted. Their last good content is used.
func (s *Objects) Problems() []Problem {
	s.mu.Lock()
	defer s.mu.Unlock()
	var all []Problem
	for ref, text := range s.invalid {
		all = append(all, Problem{Resource: ref.resource, Namespace: ref.Namespace, Name: ref.Name, Text: text})
	}
	slices.SortFunc(all, func(a, b Problem) int {
		return cmp.Or(strings.Compare(a.Resource, b.Resource), strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name))
	})
	return all
}

// Run follows the objects until ctx ends, and then returns nil.
func (s *Objects) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.meshes.Run(ctx) })
	group.Go(func() error { return s.dataplanes.Run(ctx) })
	return group.Wait()
}

// Meshes returns the names of the Meshes, sorted, and false while they have not been read.
func (s *Objects) Meshes() ([]string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := make([]string, 0, len(s.names))
	for name := range s.names {
		names = append(names, name)
	}
	slices.Sort(names)
	return names, s.missing == 0
}

// ReadMeshes returns the names of the Meshes that the API server has now.
func (s *Objects) ReadMeshes(ctx context.Context) ([]string, error) {
	var list v1alpha1.MeshList
	if err := s.client.Get().Resource(resourceMeshes).Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list Meshes: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names, nil
}

// changed passes an object on, if it is valid, and has its status looked at.
func (s *Objects) changed(ref reference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.get(ref) // in the order of the calls: two watches call
	if ref.resource == resourceMeshes && s.names[ref.Name] != (now != nil) {
		delete(s.names, ref.Name)
		if now != nil {
			s.names[ref.Name] = true
		}
		for other := range s.passed {
			if other.resource == resourceDataplanes {
				s.lookAt(other) // its mesh may be known now
			}
		}
	}
	old, had := s.passed[ref]
	if now == nil {
		delete(s.passed, ref)
		delete(s.invalid, ref)
		delete(s.unwritten, ref)
		if had {
			s.o.Builder.Delete(s.o.Name, old)
		}
		return
	}
	s.lookAt(ref)
	o, err := s.resolve(ref, now)
	if err != nil {
		if text := inOneLine(err); s.invalid[ref] != text {
			s.invalid[ref] = text
			s.o.Logger.Warn("object is not valid: its last good content is used", "resource", ref.resource,
				"namespace", ref.Namespace, "name", ref.Name, "err", text)
		}
		return
	}
	delete(s.invalid, ref)
	s.passed[ref] = o.Key()
	s.o.Builder.Set(s.o.Name, o)
	if had && old != o.Key() { // it is in another mesh now
		s.o.Builder.Delete(s.o.Name, old)
	}
}

// lookAt has the status of an object looked at. mu is held.
func (s *Objects) lookAt(ref reference) {
	s.unwritten[ref] = struct{}{}
	select {
	case s.wake <- struct{}{}:
	default: // RunStatus has not yet seen the last one
	}
}

func (s *Objects) kindSynced() {
	s.mu.Lock()
	s.missing--
	synced := s.missing == 0
	s.mu.Unlock()
	if synced {
		s.o.Builder.Synced(s.o.Name)
	}
}

// get returns the record of an object, nil if there is none.
func (s *Objects) get(ref reference) *record {
	if ref.resource == resourceMeshes {
		return s.meshes.Get(ref.Key)
	}
	return s.dataplanes.Get(ref.Key)
}

// violations returns each violation of an error of Validate, none for nil.
func violations(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		return joined.Unwrap()
	}
	return []error{err}
}

// inOneLine returns the text of an error of Validate, with each violation.
func inOneLine(err error) string {
	var all []string
	for _, v := range violations(err) {
		all = append(all, v.Error())
	}
	return strings.Join(all, "; ")
}
