// Package servingca publishes the CAs with which clients verify the control plane, in a ConfigMap of the control
// plane's namespace, for clients that may not read its Secrets.
package servingca

import (
	"context"
	"fmt"
	"log/slog"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1apply "k8s.io/client-go/applyconfigurations/core/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/upkeep"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// fieldManager owns the written fields.
const fieldManager = "sonde-cp"

// Options of Run. All are required but Loop.
type Options struct {
	// Client of the API server, without a timeout: it watches.
	Client kubernetes.Interface
	// Namespace of the control plane.
	Namespace string
	// CA returns the PEM of all CAs that clients must trust. Changed receives when it may have changed.
	CA      func() []byte
	Changed <-chan struct{}
	Logger  *slog.Logger
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// record is the part of the ConfigMap that is kept: its CAs.
type record struct{ ca string }

// Run keeps the CAs in the ConfigMap until ctx ends, and then returns nil. Only one replica may run it.
func Run(ctx context.Context, o Options) error {
	keeper := upkeep.New()
	store := watch.New(watch.Kind[*corev1.ConfigMap, record]{
		Client: o.Client.CoreV1().RESTClient(), Resource: "configmaps", Namespace: o.Namespace,
		Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, mesh.ServingCAConfigMap).String(),
		New:    &corev1.ConfigMap{},
		Record: func(m *corev1.ConfigMap) (record, bool) {
			return record{m.Data[mesh.ServingCAKey]}, true
		},
		Changed: func(watch.Key, *record, *record) { keeper.Wake() }, Synced: keeper.Wake,
	})
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return store.Run(ctx) })
	group.Go(func() error {
		return keeper.Run(ctx, upkeep.Work{
			Write: func(ctx context.Context) error { return o.write(ctx, keeper, store) },
			Failing: func(ctx context.Context, err error) {
				o.Logger.WarnContext(ctx, "failed to publish the CAs of the control plane, sondectl cannot find them",
					"configMap", mesh.ServingCAConfigMap, "err", err)
			},
			Changed: o.Changed, Loop: o.Loop,
		})
	})
	return group.Wait()
}

// Waits describes why clients cannot find these CAs in the control plane's namespace yet. A client reads the CAs before
// each call, so it needs only the CAs of a rotation's current step.
func Waits(ctx context.Context, client kubernetes.Interface, namespace string, ca []byte) []string {
	// List instead of get, since the RBAC rules allow list for this name anyway.
	list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, mesh.ServingCAConfigMap).String(),
	})
	switch {
	case err != nil:
		return []string{fmt.Sprintf("list ConfigMap %s: %v", mesh.ServingCAConfigMap, err)}
	case len(list.Items) == 0 || list.Items[0].Data[mesh.ServingCAKey] != string(ca):
		return []string{"ConfigMap " + mesh.ServingCAConfigMap + " does not have the CAs of this step yet"}
	}
	return nil
}

// write writes the ConfigMap if its content differs.
func (o Options) write(
	ctx context.Context, keeper *upkeep.Keeper, store *watch.Store[*corev1.ConfigMap, record],
) error {
	if err := store.Missing(); err != nil {
		return err
	}
	is, want := store.Get(watch.Key{Namespace: o.Namespace, Name: mesh.ServingCAConfigMap}), string(o.CA())
	if is != nil && is.ca == want {
		return nil
	}
	// Apply instead of create, since RBAC cannot limit create to one name.
	object := corev1apply.ConfigMap(mesh.ServingCAConfigMap,
		o.Namespace).WithData(map[string]string{mesh.ServingCAKey: want})
	return keeper.Request(ctx, func(ctx context.Context) error {
		if _, err := o.Client.CoreV1().ConfigMaps(o.Namespace).Apply(ctx, object,
			metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	})
}
