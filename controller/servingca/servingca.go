// Package servingca publishes the CAs by which clients verify the control plane: it keeps them in a ConfigMap of the control plane's namespace, for
// those who may not read its Secrets.
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

// fieldManager owns what is written.
const fieldManager = "sonde-cp"

// Options of Run. All are required but Loop.
type Options struct {
	// Client of the API server, without a timeout: it watches.
	Client kubernetes.Interface
	// Namespace of the control plane.
	Namespace string
	// CA returns the certificates of all CAs that clients must trust, PEM. Changed receives when it may return others than before.
	CA      func() []byte
	Changed <-chan struct{}
	Logger  *slog.Logger
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// record is what is kept of the ConfigMap: its CAs.
type record struct{ ca string }

// Run keeps the CAs in the ConfigMap until ctx ends, and then returns nil. It is for one replica at a time.
func Run(ctx context.Context, o Options) error {
	keeper := upkeep.New()
	store := watch.New(watch.Kind[*corev1.ConfigMap, record]{
		Client: o.Client.CoreV1().RESTClient(), Resource: "configmaps", Namespace: o.Namespace,
		Fields: fields.OneTermEqualSelector(metav1.ObjectNameField, mesh.ServingCAConfigMap).String(), New: &corev1.ConfigMap{},
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
				o.Logger.WarnContext(ctx, "CAs of the control plane not published: sondectl does not find them until they are", "configMap", mesh.ServingCAConfigMap, "err", err)
			},
			Changed: o.Changed, Loop: o.Loop,
		})
	})
	return group.Wait()
}

// Published returns the CAs that clients find in the namespace of a control plane now, "" if there are none.
func Published(ctx context.Context, client kubernetes.Interface, namespace string) (string, error) {
	// Not get: the right to list one name is there anyway.
	list, err := client.CoreV1().ConfigMaps(namespace).List(ctx, metav1.ListOptions{
		FieldSelector: fields.OneTermEqualSelector(metav1.ObjectNameField, mesh.ServingCAConfigMap).String(),
	})
	if err != nil {
		return "", fmt.Errorf("list ConfigMap %s: %w", mesh.ServingCAConfigMap, err)
	}
	if len(list.Items) == 0 {
		return "", nil
	}
	return list.Items[0].Data[mesh.ServingCAKey], nil
}

// write writes the ConfigMap if it has something else.
func (o Options) write(ctx context.Context, keeper *upkeep.Keeper, store *watch.Store[*corev1.ConfigMap, record]) error {
	if err := store.Missing(); err != nil {
		return err
	}
	is, want := store.Get(watch.Key{Namespace: o.Namespace, Name: mesh.ServingCAConfigMap}), string(o.CA())
	if is != nil && is.ca == want {
		return nil
	}
	// An apply makes the object where there is none, with the right to create this name alone, which a create cannot have.
	object := corev1apply.ConfigMap(mesh.ServingCAConfigMap, o.Namespace).WithData(map[string]string{mesh.ServingCAKey: want})
	return keeper.Request(ctx, func(ctx context.Context) error {
		if _, err := o.Client.CoreV1().ConfigMaps(o.Namespace).Apply(ctx, object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("write: %w", err)
		}
		return nil
	})
}
