// Package objects reads the objects of group sonde.dev, and reports in their status whether they are in use.
package objects

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/run"
)

// Builder receives the objects, under the name of the source. Its methods return at once. *meshview.Builder implements
// it.
type Builder interface {
	Set(source string, o mesh.Object)
	Delete(source string, k mesh.Key)
	Synced(source string)
}

// Options of Objects.
type Options struct {
	// Config of the API server, without a timeout. Timeout bounds requests, but not watches. Required.
	Config  *rest.Config
	Timeout time.Duration
	// MeshOf returns the mesh of a namespace's Dataplanes without a label kuma.io/mesh. Required.
	MeshOf func(namespace string) string
	// Builder receives the valid objects. Required.
	Builder Builder
	// Name of the source for the Builder. Required.
	Name string
	// Secrets of the control plane's namespace record that the default Mesh was created. Required.
	Secrets clientv1.SecretInterface
	// Recorded returns the last Mesh of each mesh with mTLS, which stays in use after a deletion, see
	// identity.Authority.Recorded. Required.
	Recorded func() map[string]*mesh.Mesh
	// ProbesMode of Dataplanes that do not set it. Default unified.
	ProbesMode mesh.ProbesMode
	// Memory is the memory limit of this process in bytes, of which each namespace has a share. Default 512 MiB.
	Memory uint64
	// Logger, default none.
	Logger *slog.Logger
	// Loop watches RunStatus. Default: none.
	Loop *heartbeat.Loop
}

// Objects passes the objects of group sonde.dev to a Builder, and keeps them up to date there. If an object becomes
// invalid, its last valid content stays in effect.
type Objects struct {
	o          Options
	client     rest.Interface // for requests other than watches
	meshes     *watch.Store[*v1alpha1.Mesh, record]
	dataplanes *watch.Store[*v1alpha1.Dataplane, record]
	wake       run.Signal // unwritten has changed

	mu        sync.Mutex
	unwritten map[reference]struct{} // objects whose status may have to be written
	missing   int                    // kinds that have not been read completely
	passed    map[reference]mesh.Key // what the Builder has, by object
	invalid   map[reference]invalid  // why the other objects are not valid
	names     map[string]bool        // of the Meshes
}

// reference identifies an object.
type reference struct {
	resource string
	watch.Key
}

// record is the part of an object that is kept.
type record struct {
	uid        types.UID
	object     mesh.Object // as written, nil if it does not count
	generation int64
	accepted   *metav1.Condition // its status now, or nil
}

// New returns Objects. It reads nothing before Run.
func New(o Options) (*Objects, error) {
	watching, err := NewClient(o.Config, 0)
	if err != nil {
		return nil, err
	}
	client, err := NewClient(o.Config, o.Timeout)
	if err != nil {
		return nil, err
	}
	o.Logger = cmp.Or(o.Logger, slog.New(slog.DiscardHandler))
	s := &Objects{
		o: o, client: client, missing: 2, passed: map[reference]mesh.Key{}, names: map[string]bool{},
		wake: run.NewSignal(), unwritten: map[reference]struct{}{}, invalid: map[reference]invalid{},
	}
	s.meshes = watch.New(watch.Kind[*v1alpha1.Mesh, record]{
		Client: watching, Resource: resourceMeshes, New: &v1alpha1.Mesh{}, Synced: s.kindSynced, Share: shareOf(o.Memory),
		Record: func(m *v1alpha1.Mesh) (record, bool) {
			return newRecord(&mesh.Mesh{Name: m.Name, Labels: m.Labels, Spec: *m.Spec.DeepCopy()}, m, m.Status), true
		},
		Changed: func(key watch.Key, _, _ *record) { s.changed(reference{resourceMeshes, key}) },
	})
	s.dataplanes = watch.New(watch.Kind[*v1alpha1.Dataplane, record]{
		Client: watching, Resource: resourceDataplanes, New: &v1alpha1.Dataplane{}, Synced: s.kindSynced,
		Share: shareOf(o.Memory),
		Record: func(d *v1alpha1.Dataplane) (record, bool) {
			return newRecord(dataplaneOf(d), d, d.Status), true
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

// dataplaneOf returns the Dataplane that an object describes. Its name is <name>.<namespace>, as for a pod. Its mesh is
// "" if the namespace decides.
func dataplaneOf(d *v1alpha1.Dataplane) *mesh.Dataplane {
	return &mesh.Dataplane{
		Meta: mesh.Meta{Mesh: d.Labels[mesh.LabelMesh], Name: mesh.ObjectDataplane(d.Namespace, d.Name), Labels: d.Labels},
		Spec: *d.Spec.DeepCopy(),
	}
}

func newRecord(o mesh.Object, of metav1.Object, status v1alpha1.Status) record {
	r := record{uid: of.GetUID(), object: o, generation: of.GetGeneration()}
	if c := meta.FindStatusCondition(status.Conditions, v1alpha1.ConditionAccepted); c != nil {
		copied := *c
		copied.Message = cut.Text(c.Message, maxMessage+1) // a longer message is not ours
		r.accepted = &copied
	}
	return r
}

// resolve returns the object of a record with its mesh, and all its problems.
func (s *Objects) resolve(ref reference, r *record) (mesh.Object, error) {
	if r.object == nil {
		return nil, errors.New(beyondShare(s.o.Memory))
	}
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
	return nil, fmt.Errorf("resolve a %T", r.object) // no other kind exists
}

// MeshChanged resolves the Dataplanes of a namespace again after its mesh has changed. It does not block.
func (s *Objects) MeshChanged(namespace string) {
	for _, key := range s.dataplanes.Keys() {
		if key.Namespace == namespace {
			s.changed(reference{resourceDataplanes, key})
		}
	}
}

// Missing returns which kinds have not been read yet, and why; nil once all have been read.
func (s *Objects) Missing() error { return errors.Join(s.meshes.Missing(), s.dataplanes.Missing()) }

// Lost returns since when the watch of any kind has been disconnected, zero if all are connected.
func (s *Objects) Lost() watch.Loss { return watch.First(s.meshes.Lost(), s.dataplanes.Lost()) }

// Run follows the objects until ctx ends, and then returns nil.
func (s *Objects) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return s.meshes.Run(ctx) })
	group.Go(func() error { return s.dataplanes.Run(ctx) })
	return group.Wait()
}

// Meshes returns the sorted names of all existing and recorded meshes, and false before the first read.
func (s *Objects) Meshes() ([]string, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.withRecorded(slices.Collect(maps.Keys(s.names))), s.missing == 0
}

// withRecorded adds the recorded meshes, and sorts the names.
func (s *Objects) withRecorded(names []string) []string {
	names = slices.AppendSeq(names, maps.Keys(s.o.Recorded()))
	slices.Sort(names)
	return slices.Compact(names)
}

// ReadMeshes is Meshes, read from the API server now.
func (s *Objects) ReadMeshes(ctx context.Context) ([]string, error) {
	var list v1alpha1.MeshList
	if err := s.client.Get().Resource(resourceMeshes).Do(ctx).Into(&list); err != nil {
		return nil, fmt.Errorf("list Meshes: %w", err)
	}
	names := make([]string, 0, len(list.Items))
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return s.withRecorded(names), nil
}

// changed passes a valid object to the Builder, and queues its status.
func (s *Objects) changed(ref reference) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.get(ref) // read here, since two watches call this method
	if ref.resource == resourceMeshes && s.names[ref.Name] != (now != nil) {
		s.meshCameOrWent(ref.Name, now != nil)
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
	s.queueStatus(ref)
	o, err := s.resolve(ref, now)
	switch {
	case now.object == nil: // beyond its share, so its errors are not evaluated
		if s.note(ref, now, err, true) {
			s.o.Logger.Warn("object does not count", ref.logged(err)...)
		}
		if had {
			delete(s.passed, ref)
			s.o.Builder.Delete(s.o.Name, old)
		}
		return
	case err != nil:
		if s.note(ref, now, err, false) {
			s.o.Logger.Warn("object is invalid, using its last valid content", ref.logged(err)...)
		}
		return
	}
	if exceeds := exceeded(o); exceeds != nil {
		if s.note(ref, now, exceeds, true) {
			s.o.Logger.Warn("object exceeds the limits for new objects, using it anyway", ref.logged(exceeds)...)
		}
	} else {
		delete(s.invalid, ref)
	}
	s.passed[ref] = o.Key()
	s.o.Builder.Set(s.o.Name, o)
	if had && old != o.Key() { // it has moved to another mesh
		s.o.Builder.Delete(s.o.Name, old)
	}
}

// meshCameOrWent records that a Mesh was created or deleted. The caller holds mu.
func (s *Objects) meshCameOrWent(name string, there bool) {
	delete(s.names, name)
	if there {
		s.names[name] = true
	} else if m := s.o.Recorded()[name]; m != nil {
		s.o.Logger.Error("Mesh deleted, keeping its recorded mode", "mesh", name, "err", m.LostError())
	}
	for other := range s.passed {
		if other.resource == resourceDataplanes {
			s.queueStatus(other) // its mesh may have become known
		}
	}
}

// queueStatus makes RunStatus check the status of an object. The caller holds mu.
func (s *Objects) queueStatus(ref reference) {
	s.unwritten[ref] = struct{}{}
	s.wake.Set()
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

// get returns the record of an object, or nil.
func (s *Objects) get(ref reference) *record {
	if ref.resource == resourceMeshes {
		return s.meshes.Get(ref.Key)
	}
	return s.dataplanes.Get(ref.Key)
}

// violations returns each violation in an error of Validate; it is empty for nil.
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

// inOneLine returns the text of an error of Validate, with all violations in one line.
func inOneLine(err error) string {
	var all []string
	for _, v := range violations(err) {
		all = append(all, v.Error())
	}
	return strings.Join(all, "; ")
}
