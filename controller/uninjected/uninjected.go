// Package uninjected tells of pods that have no sidecar although one is asked for: they were made before that or past the webhook, or no sidecar can
// work in them, so that the API server does not ask the webhook. Nothing else would say it.
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
)

const (
	// soon is when it is asked again whether the cluster has been read.
	soon = 2 * time.Second
	// every is how often pods are looked for. They are not watched: a cluster may have many that are in no mesh.
	every = 2 * time.Minute
	// again is when a pod is told of once more: events are kept for an hour.
	again = 50 * time.Minute
	// once is for pods that are as they will stay, such as those of a DaemonSet on each node.
	once = math.MaxInt64
	// perRound is how many pods are told of in one round, so that other events are not lost for them.
	perRound = 50
)

// Options of Run. All are required.
type Options struct {
	// Client of the API server, with a timeout.
	Client kubernetes.Interface
	// Missing returns what of the cluster has not been read yet: until then nothing is looked for.
	Missing func() error
	// Namespaces returns those whose pods are to be injected, at least. Labels are those of pods that ask for it themselves.
	Namespaces func() []string
	Labels     []string
	// WhyNot says why a pod without a sidecar has none.
	WhyNot func(*corev1.Pod) Absence
	// Record writes an event. It returns at once.
	Record func(events.Event)
	// Warn tells of a warning about a pod, to whoever made it, too.
	Warn   func(ctx context.Context, pod *corev1.Pod, warning string)
	Logger *slog.Logger
}

// Absence is why a pod has no sidecar. The zero value needs no event.
type Absence struct {
	// Missing is the note about a pod that should have one.
	Missing string
	// Warning is about a pod that asks for one and is left alone.
	Warning string
}

// Run tells of pods until ctx ends, and then returns nil. It is for one replica at a time.
func Run(ctx context.Context, o Options) error {
	t := telling{told: map[types.UID]time.Time{}}
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-timer.C:
		}
		if o.Missing() != nil {
			timer.Reset(soon)
			continue
		}
		if err := o.round(ctx, &t); err != nil && ctx.Err() == nil {
			o.Logger.WarnContext(ctx, "search for pods without a sidecar failed", "err", err)
		}
		timer.Reset(every)
	}
}

// round looks at all pods once. Those whose template names a mesh by itself have the label of injected ones, and are only found on the network of a node.
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

// look tells of the pods that selectors find.
func (o *Options) look(ctx context.Context, t *telling, namespace, labels, fields string) error {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.Client.CoreV1().Pods(namespace).List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{LabelSelector: labels, FieldSelector: fields}, func(obj runtime.Object) error {
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

// tell tells of a pod without a sidecar, if there is something to tell.
func (o *Options) tell(ctx context.Context, t *telling, p *corev1.Pod) {
	switch a := o.WhyNot(p); {
	case a.Missing != "" && t.due(p.UID, again):
		o.Record(events.Event{
			Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, Reason: podcause.NotInjected, Action: "Inject", Note: a.Missing,
		})
	case a.Warning != "" && t.due(p.UID, once):
		o.Warn(ctx, p, a.Warning)
	}
}

// telling remembers which pods were told of.
type telling struct {
	told map[types.UID]time.Time
	now  time.Time
	seen map[types.UID]bool // in this round
	left int
}

func (t *telling) begin(now time.Time) {
	t.now, t.seen, t.left = now, map[types.UID]bool{}, perRound
}

// due reports whether a pod needs an event now, with a pause since its last one, and records it.
func (t *telling) due(uid types.UID, after time.Duration) bool {
	t.seen[uid] = true
	if last, is := t.told[uid]; is && t.now.Sub(last) < after || t.left == 0 {
		return false
	}
	t.told[uid] = t.now
	t.left--
	return true
}

// end forgets the pods that were not seen.
func (t *telling) end() {
	for uid := range t.told {
		if !t.seen[uid] {
			delete(t.told, uid)
		}
	}
}
