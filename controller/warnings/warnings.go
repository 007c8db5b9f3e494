// Package warnings shows what the webhook has warned about: whoever makes a Deployment does not see the warnings about its pods, so
// they become events of the pod, and of what has made it.
package warnings

import (
	"context"
	"log/slog"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/source"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// The reason and the action of the events.
const (
	reason = "InjectionWarning"
	action = "Inject"
)

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
}

type pod struct {
	key watch.Key
	*source.Pod
}

// New returns Warnings.
func New(client kubernetes.Interface, recorder *events.Recorder, log *slog.Logger) *Warnings {
	return &Warnings{client: client, events: recorder, log: log, pods: make(chan pod, maxWaiting)}
}

// PodChanged looks at a pod that has come. It does not block.
func (w *Warnings) PodChanged(key watch.Key, before, now *source.Pod) {
	if now == nil || now.Warnings == "" || before != nil && before.UID == now.UID || time.Since(now.Created) > fresh {
		return
	}
	select {
	case w.pods <- pod{key, now}:
	default:
		w.log.Warn("injection warnings not shown: too many pods", "namespace", key.Namespace, "pod", key.Name)
	}
}

// Run makes the events until ctx ends, and then returns nil. It is for one replica at a time.
func (w *Warnings) Run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case p := <-w.pods:
			w.record(ctx, p)
		}
	}
}

func (w *Warnings) record(ctx context.Context, p pod) {
	about := []events.Event{{Kind: "Pod", APIVersion: "v1", Namespace: p.key.Namespace, Name: p.key.Name, UID: p.UID}}
	if o := p.Owner; o.Kind != "" {
		about = append(about, w.ownerOf(ctx, p.key.Namespace, o))
	}
	for _, e := range about {
		for warning := range strings.SplitSeq(p.Warnings, "\n") {
			e.Reason, e.Action, e.Note = reason, action, warning
			w.events.Record(e)
		}
	}
}

// ownerOf returns what people have written: the Deployment of a ReplicaSet, else the owner itself.
func (w *Warnings) ownerOf(ctx context.Context, namespace string, o source.Owner) events.Event {
	e := events.Event{Kind: o.Kind, APIVersion: o.APIVersion, Namespace: namespace, Name: o.Name, UID: o.UID}
	if o.Kind != "ReplicaSet" {
		return e
	}
	rs, err := w.client.AppsV1().ReplicaSets(namespace).Get(ctx, o.Name, metav1.GetOptions{})
	if err != nil {
		w.log.WarnContext(ctx, "Deployment of a ReplicaSet not found: its event is about the ReplicaSet", "namespace", namespace, "name", o.Name, "err", err)
		return e
	}
	if d := metav1.GetControllerOf(rs); d != nil {
		e.Kind, e.APIVersion, e.Name, e.UID = d.Kind, d.APIVersion, d.Name, d.UID
	}
	return e
}
