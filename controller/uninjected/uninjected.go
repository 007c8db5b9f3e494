// Package uninjected reports pods that have no sidecar although they should. They were created before the setting or
// without the webhook, or the API server does not call the webhook for them, because a sidecar cannot work in them.
// Nothing else reports them.
package uninjected

import (
	"context"
	"fmt"
	"log/slog"
	"math"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/internal/podcause"
	"github.com/sonde-mesh/sonde/internal/podspec"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// soon is the retry interval until the cluster has been read.
	soon = 2 * time.Second
	// every is the interval of searches. It polls, because a cluster may have too many pods without a mesh for a watch.
	every = 2 * time.Minute
	// again is the interval of events about a pod; events are kept for an hour.
	again = 50 * time.Minute
	// once limits pods that do not change, such as a DaemonSet's pods, to one event each.
	once = math.MaxInt64
	// perRound is the maximum number of reported pods per round, so that other events are not dropped.
	perRound = 50
)

// Options of Run. All are required.
type Options struct {
	// Client of the API server, with a timeout.
	Client kubernetes.Interface
	// Missing returns which kinds have not been read yet. The search begins after all have been read.
	Missing func() error
	// Namespaces returns at least the namespaces whose pods are injected. Labels are the labels by which pods request a
	// sidecar themselves.
	Namespaces func() []string
	Labels     []string
	// WhyNot returns why a pod has no sidecar.
	WhyNot func(*corev1.Pod) Absence
	// Record writes an event. It returns at once.
	Record func(events.Event)
	// Warn reports a warning about a pod, also to its owner.
	Warn   func(ctx context.Context, pod *corev1.Pod, warning string)
	Logger *slog.Logger
}

// Absence is why a pod has no sidecar. The zero value needs no event.
type Absence struct {
	// Missing is the note for a pod that should have a sidecar.
	Missing string
	// Warning is for a pod that requests a sidecar, but cannot have one.
	Warning string
}

// Run reports pods until ctx ends, and then returns nil. Only one replica may run it.
func Run(ctx context.Context, o Options) error {
	t := telling{told: map[types.UID]time.Time{}}
	for next := time.Duration(0); run.Sleep(ctx, next) == nil; {
		next = every
		if o.Missing() != nil {
			next = soon
		} else if err := o.round(ctx, &t); err != nil && ctx.Err() == nil {
			o.Logger.WarnContext(ctx, "failed to search for pods without a sidecar", "err", err)
		}
	}
	return nil
}

// round searches all pods once. Pods with a mesh label in their template look injected; among these, it only finds pods
// in the host network.
func (o *Options) round(ctx context.Context, t *telling) error {
	t.begin(time.Now())
	for _, namespace := range o.Namespaces() {
		if err := o.look(ctx, t, namespace, "!"+mesh.LabelMesh, live); err != nil {
			return err
		}
	}
	for _, label := range o.Labels {
		if err := o.look(ctx, t, metav1.NamespaceAll, label+" in (enabled, true), !"+mesh.LabelMesh, live); err != nil {
			return err
		}
	}
	if err := o.look(ctx, t, metav1.NamespaceAll, mesh.LabelMesh, live+",spec.hostNetwork=true"); err != nil {
		return err
	}
	t.end()
	return nil
}

// live selects pods that have not ended.
const live = "status.phase!=Succeeded,status.phase!=Failed"

// look reports the pods that match the selectors.
func (o *Options) look(ctx context.Context, t *telling, namespace, labels, fields string) error {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.Client.CoreV1().Pods(namespace).List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{LabelSelector: labels, FieldSelector: fields},
		func(obj runtime.Object) error {
			if p, ok := obj.(*corev1.Pod); ok && !podspec.IsInjected(&p.Spec) {
				o.tell(ctx, t, p)
			}
			return nil
		})
	if err != nil {
		return fmt.Errorf("list pods without a sidecar: %w", err)
	}
	return nil
}

// tell reports a pod without a sidecar, if WhyNot has a reason for it.
func (o *Options) tell(ctx context.Context, t *telling, p *corev1.Pod) {
	switch a := o.WhyNot(p); {
	case a.Missing != "" && t.due(p.UID, again):
		o.Record(events.Event{
			Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, Reason: podcause.NotInjected,
			Action: "Inject", Note: a.Missing,
		})
	case a.Warning != "" && t.due(p.UID, once):
		o.Warn(ctx, p, a.Warning)
	}
}

// telling records the reported pods.
type telling struct {
	told map[types.UID]time.Time
	now  time.Time
	seen map[types.UID]bool // in this round
	left int
}

func (t *telling) begin(now time.Time) {
	t.now, t.seen, t.left = now, map[types.UID]bool{}, perRound
}

// due reports whether a pod needs an event now, and records it: its last event must be at least after ago.
func (t *telling) due(uid types.UID, after time.Duration) bool {
	t.seen[uid] = true
	if last, is := t.told[uid]; is && t.now.Sub(last) < after || t.left == 0 {
		return false
	}
	t.told[uid] = t.now
	t.left--
	return true
}

// end forgets the pods that this round did not find.
func (t *telling) end() {
	for uid := range t.told {
		if !t.seen[uid] {
			delete(t.told, uid)
		}
	}
}
