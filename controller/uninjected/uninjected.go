// Package uninjected tells of pods that have no sidecar though one is asked for: they were made before that, or past the webhook, and nothing else
// would say it.
package uninjected

import (
	"context"
	"fmt"
	"log/slog"
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
	// WhyNot says why a pod without a sidecar has none, and whether it should have one.
	WhyNot func(*corev1.Pod) (why string, missing bool)
	// Record writes an event. It returns at once.
	Record func(events.Event)
	Logger *slog.Logger
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

// round looks at all pods once. Those of a namespace whose template names a mesh by itself are not found: they have the label of the injected ones.
func (o *Options) round(ctx context.Context, t *telling) error {
	t.begin(time.Now())
	for _, namespace := range o.Namespaces() {
		if err := o.look(ctx, t, namespace, "!"+mesh.LabelMesh); err != nil {
			return err
		}
	}
	for _, label := range o.Labels {
		if err := o.look(ctx, t, metav1.NamespaceAll, label+" in (enabled, true), !"+mesh.LabelMesh); err != nil {
			return err
		}
	}
	t.end()
	return nil
}

// look tells of the pods that a selector finds.
func (o *Options) look(ctx context.Context, t *telling, namespace, selector string) error {
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.Client.CoreV1().Pods(namespace).List(ctx, options)
	})
	live := metav1.ListOptions{LabelSelector: selector, FieldSelector: "status.phase!=Succeeded,status.phase!=Failed"}
	err := list.EachListItem(ctx, live, func(obj runtime.Object) error {
		p, ok := obj.(*corev1.Pod)
		if !ok || podspec.IsInjected(&p.Spec) {
			return nil
		}
		if why, missing := o.WhyNot(p); missing && t.due(p.UID) {
			o.Record(events.Event{
				Kind: "Pod", APIVersion: "v1", Namespace: p.Namespace, Name: p.Name, UID: p.UID, Reason: podcause.NotInjected, Action: "Inject", Note: why,
			})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list pods without a sidecar: %w", err)
	}
	return nil
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

// due reports whether a pod is to be told of now, and notes that it is.
func (t *telling) due(uid types.UID) bool {
	t.seen[uid] = true
	if last, is := t.told[uid]; is && t.now.Sub(last) < again || t.left == 0 {
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
