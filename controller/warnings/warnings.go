// Package warnings shows what the webhook has warned about: the author of a Deployment does not see the warnings about its pods, so
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
	client kubernetes.Interface // with a timeout
	others *watch.Store[*corev1.Pod, source.Pod]
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

// New returns Warnings. The client watching has no timeout. The loop, which may be nil, watches Run.
func New(client, watching kubernetes.Interface, recorder *events.Recorder, log *slog.Logger, loop *heartbeat.Loop) *Warnings {
	w := &Warnings{client: client, events: recorder, log: log, loop: loop, pods: make(chan pod, maxWaiting)}
	w.others = watch.New(watch.Kind[*corev1.Pod, source.Pod]{
		Client: watching.CoreV1().RESTClient(), Resource: "pods", Fields: "spec.hostNetwork=true", New: &corev1.Pod{},
		Record: source.Warned, Changed: w.PodChanged,
	})
	return w
}

// Watch tells of the pods on the network of their node, which are left alone and so in no mesh, until ctx ends, and then returns nil.
func (w *Warnings) Watch(ctx context.Context) error { return w.others.Run(ctx) }

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
				w.record(ctx, p)
				w.loop.End()
			}
		}
	}
}

// record makes an event of all warnings of a pod: events of one reason about one object become a series with the note of the first.
func (w *Warnings) record(ctx context.Context, p pod) {
	e := events.Event{
		Kind: "Pod", APIVersion: "v1", Namespace: p.key.Namespace, Name: p.key.Name, UID: p.UID,
		Reason: podcause.InjectionWarning, Action: action, Note: strings.ReplaceAll(p.Warnings, "\n", "; "),
	}
	w.events.Record(e)
	if p.Owner.Kind != "" {
		e.Kind, e.APIVersion, e.Name, e.UID = w.ownerOf(ctx, p.key.Namespace, p.Owner)
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
