// Package secrets keeps the keys of the control plane in Kubernetes Secrets, one per name. All replicas share them.
package secrets

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clientv1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/identity/secret"
)

// The label of all Secrets of the control plane. List and Watch ignore all others.
const (
	managedByLabel = "app.kubernetes.io/managed-by"
	managedBy      = "sonde"
	selector       = managedByLabel + "=" + managedBy
)

const (
	// maxSize of a secret, in bytes. The API server accepts 1 MiB for a whole Secret; ours have a few KiB.
	maxSize = 256 << 10
	// requestTimeout bounds each request except watches.
	requestTimeout = 10 * time.Second
)

// Store keeps secrets in the namespace of a client. It needs the verbs get, list, watch, create and update on secrets
// there.
type Store struct {
	client clientv1.SecretInterface
}

var _ identity.Secrets = (*Store)(nil)

// New returns a Store. client must be for the control plane's namespace.
func New(client clientv1.SecretInterface) *Store { return &Store{client: client} }

// Read implements secret.Store. The version is the resourceVersion.
func (s *Store) Read(ctx context.Context, name string) (data []byte, version string, err error) {
	o, err := objectOf(name)
	if err != nil {
		return nil, "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kept, err := s.client.Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return nil, "", o.wrap("read", err)
	}
	data, ok := kept.Data[o.key]
	if !ok {
		return nil, "", fmt.Errorf("read Secret %s: it has no key %q", o.name, o.key)
	}
	if len(data) > maxSize {
		return nil, "", fmt.Errorf("read Secret %s: %q has %d bytes, at most %d are read", o.name, o.key, len(data), maxSize)
	}
	return data, kept.ResourceVersion, nil
}

// Create implements secret.Store.
func (s *Store) Create(ctx context.Context, name string, data []byte) (string, error) {
	o, err := objectOf(name)
	if err == nil {
		err = o.checkSize(data)
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	made, err := s.client.Create(ctx, &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Name: o.name, Labels: map[string]string{managedByLabel: managedBy}},
		Type:       corev1.SecretTypeOpaque,
		Data:       map[string][]byte{o.key: data},
	}, metav1.CreateOptions{})
	if err != nil {
		return "", o.wrap("create", err)
	}
	return made.ResourceVersion, nil
}

// Update implements identity.Secrets. It keeps the other fields of the Secret.
func (s *Store) Update(ctx context.Context, name string, data []byte, version string) (string, error) {
	o, err := objectOf(name)
	if err == nil {
		err = o.checkSize(data)
	}
	if err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	kept, err := s.client.Get(ctx, o.name, metav1.GetOptions{})
	if err != nil {
		return "", o.wrap("update", err)
	}
	if kept.ResourceVersion != version {
		return "", fmt.Errorf("update Secret %s: %w", o.name, secret.ErrConflict)
	}
	kept.Data = map[string][]byte{o.key: data}
	kept, err = s.client.Update(ctx, kept, metav1.UpdateOptions{})
	if err != nil {
		return "", o.wrap("update", err)
	}
	return kept.ResourceVersion, nil
}

// List implements identity.Secrets.
func (s *Store) List(ctx context.Context, directory string) ([]string, error) {
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	all, err := s.client.List(ctx, metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		return nil, fmt.Errorf("list Secrets: %w", err)
	}
	var names []string
	for i := range all.Items {
		name, ok := nameOf(all.Items[i].Name)
		if below, found := strings.CutPrefix(name, directory+"/"); ok && found {
			first, _, _ := strings.Cut(below, "/")
			names = append(names, first)
		}
	}
	slices.Sort(names)
	return slices.Compact(names), nil
}

// Watch implements identity.Secrets. It calls changed for each existing secret at the start, too, and after a reconnect
// for each secret that may have changed meanwhile.
func (s *Store) Watch(ctx context.Context, changed func(name string)) error {
	notify := func(o any) {
		key, err := cache.DeletionHandlingMetaNamespaceKeyFunc(o)
		if err != nil {
			return // not an object
		}
		_, object, _ := strings.Cut(key, "/")
		if name, ok := nameOf(object); ok {
			changed(name)
		}
	}
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
			ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				o.LabelSelector = selector
				return s.client.List(ctx, o)
			},
			WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
				o.LabelSelector = selector
				return s.client.Watch(ctx, o)
			},
		}, s.client),
		ObjectType: &corev1.Secret{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc: notify, UpdateFunc: func(_, o any) { notify(o) }, DeleteFunc: notify,
		},
		Transform: withoutData,
	})
	informer.RunWithContext(ctx)
	return nil
}

// withoutData removes the keys, which the informer would otherwise keep in memory.
func withoutData(o any) (any, error) {
	if kept, ok := o.(*corev1.Secret); ok {
		kept.Data, kept.ManagedFields = nil, nil
	}
	return o, nil
}

// object identifies a secret: a key of a Secret.
type object struct{ name, key string }

// wrap converts an error of the API to an error of this package's interfaces.
func (o object) wrap(verb string, err error) error {
	switch {
	case apierrors.IsNotFound(err):
		err = fs.ErrNotExist
	case apierrors.IsAlreadyExists(err):
		err = fs.ErrExist
	case apierrors.IsConflict(err):
		err = secret.ErrConflict
	}
	return fmt.Errorf("%s Secret %s: %w", verb, o.name, err)
}

func (o object) checkSize(data []byte) error {
	if len(data) > maxSize {
		return fmt.Errorf("write Secret %s: %d bytes, at most %d are written", o.name, len(data), maxSize)
	}
	return nil
}

// errName means that a name does not belong to a secret of the control plane.
var errName = errors.New("no name of a secret")
