// Package warnings shows warnings about pods: the author of a Deployment does not see the webhook's warnings about its
// pods, so they become events of the pod and of its owner.
package warnings

import (
	"context"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// action of the events.
const action = "Inject"

// maxWaiting bounds the pods that wait for their events. The first list of a big cluster has more pods, but they are
// old.
const maxWaiting = 1000

// fresh is the maximum age of pods that get events: the previous leader recorded the events of older pods.
const fresh = 2 * time.Minute

// Warnings records the events.
type Warnings struct {
	client kubernetes.Interface
	events *events.Recorder
	log    *slog.Logger
	pods   chan pod
	loop   *heartbeat.Loop
	leads  atomic.Bool // Run is running
}

type pod struct {
	key watch.Key
	*source.Pod
}

// New returns Warnings. client must have a request timeout. loop watches Run; it may be nil.
func New(client kubernetes.Interface, recorder *events.Recorder, log *slog.Logger, loop *heartbeat.Loop) *Warnings {
	return &Warnings{client: client, events: recorder, log: log, loop: loop, pods: make(chan pod, maxWaiting)}
}

// PodChanged queues a new pod. It does not block.
func (w *Warnings) PodChanged(key watch.Key, before, now *source.Pod) {
	if now == nil || now.Warnings == "" || before != nil && before.UID == now.UID || !isFresh(now) {
		return
	}
	for {
		select {
		case w.pods <- pod{key, now}:
			return
		default:
		}
		// Other replicas keep the last pods, in case they become the leader soon.
		select {
		case old := <-w.pods:
			if w.leads.Load() && isFresh(old.Pod) {
				w.log.Warn("dropping the injection warnings of a pod, the queue is full",
					"namespace", old.key.Namespace, "pod", old.key.Name)
			}
		default:
		}
	}
}

func isFresh(p *source.Pod) bool { return time.Since(p.Created) <= fresh }

// Run records the events until ctx ends, and then returns nil. Only one replica may run it.
func (w *Warnings) Run(ctx context.Context) error {
	w.leads.Store(true)
	defer w.leads.Store(false)
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-w.pods:
			if isFresh(p.Pod) {
				w.loop.Begin()
				w.record(ctx, p.key, p.UID, p.Owner, p.Warnings)
				w.loop.End()
			}
		}
	}
}

// Warn records events about a pod that the API server does not send to the webhook.
func (w *Warnings) Warn(ctx context.Context, p *corev1.Pod, warning string) {
	w.record(ctx, watch.Key{Namespace: p.Namespace, Name: p.Name}, p.UID, source.OwnerOf(p), warning)
}

// record puts all warnings of a pod into one event: several events with one reason about one object would become a
// series with only the first note.
func (w *Warnings) record(ctx context.Context, pod watch.Key, uid types.UID, owner source.Owner, warnings string) {
	e := events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: pod.Namespace, Name: pod.Name, UID: uid,
		Reason: podcause.InjectionWarning, Action: action, Note: strings.ReplaceAll(warnings, "\n", "; "),
	}
	w.events.Record(e)
	if owner.Kind != "" {
		e.Kind, e.APIVersion, e.Name, e.UID = w.ownerOf(ctx, pod.Namespace, owner)
		w.events.Record(e)
	}
}

// ownerOf returns the object that an operator wrote: the Deployment of a ReplicaSet, otherwise the owner itself.
func (w *Warnings) ownerOf(
	ctx context.Context, namespace string, o source.Owner,
) (kind, apiVersion, name string, uid types.UID) {
	if o.Kind == "ReplicaSet" {
		rs, err := w.client.AppsV1().ReplicaSets(namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			w.log.WarnContext(ctx, "failed to find the Deployment of a ReplicaSet, recording the event about the ReplicaSet",
				"namespace", namespace, "name", o.Name, "err", err)
		} else if d := metav1.GetControllerOf(rs); d != nil {
			return d.Kind, d.APIVersion, d.Name, d.UID
		}
	}
	return o.Kind, o.APIVersion, o.Name, o.UID
}
