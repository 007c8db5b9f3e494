// Package warnings shows what is warned about pods: the author of a Deployment does not see the warnings of the webhook about its pods, so
// they become an event of the pod, and of what has made it.
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

// maxWaiting is how many pods may wait for their events: more come with the first list of a big cluster, and these are old.
const maxWaiting = 1000

// fresh is the age from which on pods are not told about: the replica that led when they came has done it.
const fresh = 2 * time.Minute

// Warnings makes the events.
type Warnings struct {
	client kubernetes.Interface
	events *events.Recorder
	log    *slog.Logger
	pods   chan pod
	loop   *heartbeat.Loop
	leads  atomic.Bool // Run runs
}

type pod struct {
	key watch.Key
	*source.Pod
}

// New returns Warnings. Each request of the client has a timeout. The loop, which may be nil, watches Run.
func New(client kubernetes.Interface, recorder *events.Recorder, log *slog.Logger, loop *heartbeat.Loop) *Warnings {
	return &Warnings{client: client, events: recorder, log: log, loop: loop, pods: make(chan pod, maxWaiting)}
}

// PodChanged looks at a pod that has come. It does not block.
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
		// A replica that does not lead keeps the last ones, in case it does soon.
		select {
		case old := <-w.pods:
			if w.leads.Load() && isFresh(old.Pod) {
				w.log.Warn("injection warnings not shown: too many pods", "namespace", old.key.Namespace, "pod", old.key.Name)
			}
		default:
		}
	}
}

func isFresh(p *source.Pod) bool { return time.Since(p.Created) <= fresh }

// Run makes the events until ctx ends, and then returns nil. It is for one replica at a time.
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

// Warn makes the events of a pod about which the webhook is not asked.
func (w *Warnings) Warn(ctx context.Context, p *corev1.Pod, warning string) {
	w.record(ctx, watch.Key{Namespace: p.Namespace, Name: p.Name}, p.UID, source.OwnerOf(p), warning)
}

// record makes an event of all warnings of a pod: events of one reason about one object become a series with the note of the first.
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

// ownerOf returns what an operator has written: the Deployment of a ReplicaSet, else the owner itself.
func (w *Warnings) ownerOf(ctx context.Context, namespace string, o source.Owner) (kind, apiVersion, name string, uid types.UID) {
	if o.Kind == "ReplicaSet" {
		rs, err := w.client.AppsV1().ReplicaSets(namespace).Get(ctx, o.Name, metav1.GetOptions{})
		if err != nil {
			w.log.WarnContext(ctx, "Deployment of a ReplicaSet not found: its event is about the ReplicaSet", "namespace", namespace, "name", o.Name, "err", err)
		} else if d := metav1.GetControllerOf(rs); d != nil {
			return d.Kind, d.APIVersion, d.Name, d.UID
		}
	}
	return o.Kind, o.APIVersion, o.Name, o.UID
}
