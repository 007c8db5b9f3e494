package watchdog

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
)

// newClient returns a client for a group; timeout 0 means no timeout.
func newClient(
	config *rest.Config, group schema.GroupVersion, register func(*runtime.Scheme) error, timeout time.Duration,
) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := register(scheme); err != nil {
		return nil, fmt.Errorf("register group %s: %w", group.Group, err)
	}
	c := rest.CopyConfig(config)
	c.Timeout, c.GroupVersion, c.APIPath = timeout, &group, "/apis"
	c.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	client, err := rest.RESTClientFor(c)
	if err != nil {
		return nil, fmt.Errorf("create client for group %s: %w", group.Group, err)
	}
	return client, nil
}

// statuses reads and writes the status of one WatchedCluster.
type statuses struct {
	client rest.Interface
	key    watch.Key
}

var _ cluster.Statuses = statuses{}

func (w *Watchdog) statuses(key watch.Key) statuses { return statuses{w.objects, key} }

// Read implements cluster.Statuses.
func (s statuses) Read(ctx context.Context) (v1alpha1.WatchedClusterStatus, string, error) {
	var o v1alpha1.WatchedCluster
	if err := s.client.Get().Resource(resource).Namespace(s.key.Namespace).Name(s.key.Name).Do(ctx).Into(&o); err != nil {
		return v1alpha1.WatchedClusterStatus{}, "", fmt.Errorf("read WatchedCluster: %w", err)
	}
	return o.Status, o.ResourceVersion, nil
}

// Write implements cluster.Statuses. The API server only uses the status of the object.
func (s statuses) Write(ctx context.Context, status v1alpha1.WatchedClusterStatus, version string) (string, error) {
	o := &v1alpha1.WatchedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: s.key.Namespace, Name: s.key.Name,
		ResourceVersion: version}, Status: status}
	var written v1alpha1.WatchedCluster
	err := s.client.Put().Resource(resource).Namespace(s.key.Namespace).Name(s.key.Name).SubResource("status").Body(o).
		Do(ctx).Into(&written)
	switch {
	case apierrors.IsConflict(err):
		return "", cluster.ErrConflict
	case err != nil:
		return "", fmt.Errorf("write status of WatchedCluster: %w", err)
	}
	return written.ResourceVersion, nil
}

// applyFile applies the WatchedCluster from the file, and reports success. It does not set fields that are not in the
// file, such as paused.
func (w *Watchdog) applyFile(ctx context.Context) bool {
	key := watch.Key{Namespace: w.o.Namespace, Name: w.o.FileCluster}
	err := w.apply(ctx, key, nil, w.file)
	if err != nil {
		w.o.Logger.WarnContext(ctx, "failed to write the WatchedCluster of the file, retrying",
			"namespace", key.Namespace, "cluster", key.Name, "err", err)
	}
	return err == nil
}

// apply writes a WatchedCluster with owners, which may be nil. It does not set fields that are not in the spec.
func (w *Watchdog) apply(
	ctx context.Context, key watch.Key, owners []metav1.OwnerReference, spec *v1alpha1.WatchedClusterSpec,
) error {
	metadata := map[string]any{"namespace": key.Namespace, "name": key.Name}
	if owners != nil {
		metadata["ownerReferences"] = owners
	}
	body, err := json.Marshal(map[string]any{"apiVersion": v1alpha1.GroupVersion.String(), "kind": "WatchedCluster",
		"metadata": metadata, "spec": spec})
	if err != nil {
		return fmt.Errorf("encode WatchedCluster: %w", err)
	}
	err = w.objects.Patch(types.ApplyPatchType).Resource(resource).Namespace(key.Namespace).Name(key.Name).
		Param("fieldManager", "sonde-watchdog").Param("force", "true").Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("write WatchedCluster: %w", err)
	}
	return nil
}
