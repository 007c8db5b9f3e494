// Package catchup has pods made that could not be made while the webhook was away. A ReplicaSet waits up to 17 minutes before it
// tries again; an update has it try at once.
package catchup

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// annotationRetry is what is touched.
const annotationRetry = mesh.OwnPrefix + "retry"

// rounds are when to look, after this replica has begun to lead: the API server may reach the webhook only after a while.
var rounds = []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute}

// Options of Run.
type Options struct {
	// Client of the API server. Required.
	Client kubernetes.Interface
	// Webhooks ends the names of our webhooks, as they are in the messages of failed requests. Required.
	Webhooks string
	// Logger. Required.
	Logger *slog.Logger
}

// Run touches what waits for the webhook, a few times after the start, and returns nil when ctx ends. It is for one replica at a
// time.
func Run(ctx context.Context, o Options) error {
	started, search := time.Now(), search{Options: o, seen: map[types.UID]string{}}
	for _, after := range rounds {
		timer := time.NewTimer(time.Until(started.Add(after)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		}
		err := search.round(ctx)
		if apierrors.IsForbidden(err) {
			o.Logger.InfoContext(ctx, "pods that could not be made are left to Kubernetes, which takes up to 17 minutes", "err", err)
			break
		}
		if err != nil && ctx.Err() == nil {
			o.Logger.WarnContext(ctx, "look for pods that could not be made failed", "err", err)
		}
	}
	<-ctx.Done()
	return nil
}

// owner is an object that makes pods.
type owner struct {
	kind, namespace, name string
}

// search is what one Run has seen.
type search struct {
	Options
	seen map[types.UID]string // versions of events that have had their owner touched
}

func (o *search) round(ctx context.Context) error {
	waiting, err := o.failedReplicaSets(ctx)
	if err != nil {
		return err
	}
	others, err := o.failedOthers(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, w := range append(waiting, others...) {
		if err := o.touch(ctx, w); err != nil {
			errs = append(errs, err)
			continue
		}
		o.Logger.InfoContext(ctx, "retry of pods that the webhook was away for", "kind", w.kind, "namespace", w.namespace, "name", w.name)
	}
	return errors.Join(errs...)
}

// ours reports whether a message is about one of our webhooks that could not be called. A pod that it has refused will be refused
// again.
func (o *search) ours(message string) bool {
	_, after, failed := strings.Cut(message, `failed calling webhook "`)
	name, _, _ := strings.Cut(after, `"`)
	return failed && strings.HasSuffix(name, o.Webhooks)
}

func (o *search) failedReplicaSets(ctx context.Context) ([]owner, error) {
	var all []owner
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.Client.AppsV1().ReplicaSets("").List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		rs, ok := obj.(*appsv1.ReplicaSet)
		if !ok {
			return nil
		}
		for _, c := range rs.Status.Conditions {
			if c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue && o.ours(c.Message) {
				all = append(all, owner{"ReplicaSet", rs.Namespace, rs.Name})
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list ReplicaSets: %w", err)
	}
	return all, nil
}

// lastFailure is how old the last event of an owner may be that still waits: the longest back-off of controllers is 1,000 s.
const lastFailure = 20 * time.Minute

// failedOthers finds StatefulSets, DaemonSets and Jobs by their events: their status does not say it. An event counts once: it comes
// again if the next try fails too.
func (o *search) failedOthers(ctx context.Context) ([]owner, error) {
	found := map[owner]bool{}
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return o.Client.CoreV1().Events("").List(ctx, options)
	})
	selector := fields.Set{"reason": "FailedCreate"}.String()
	err := list.EachListItem(ctx, metav1.ListOptions{FieldSelector: selector}, func(obj runtime.Object) error {
		e, ok := obj.(*corev1.Event)
		if !ok || !o.ours(e.Message) || o.seen[e.UID] == e.ResourceVersion || time.Since(lastSeen(e)) > lastFailure {
			return nil
		}
		of := owner{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name}
		switch of.kind {
		case "StatefulSet", "DaemonSet", "Job":
			o.seen[e.UID], found[of] = e.ResourceVersion, true
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("list events: %w", err)
	}
	return slices.Collect(maps.Keys(found)), nil
}

func lastSeen(e *corev1.Event) time.Time {
	if e.Series != nil {
		return e.Series.LastObservedTime.Time
	}
	if !e.LastTimestamp.IsZero() {
		return e.LastTimestamp.Time
	}
	return e.EventTime.Time
}

// touch changes an annotation.
func (o *search) touch(ctx context.Context, of owner) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotationRetry: time.Now().UTC().Format(time.RFC3339Nano),
	}}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	apps, options := o.Client.AppsV1(), metav1.PatchOptions{}
	switch of.kind {
	case "ReplicaSet":
		_, err = apps.ReplicaSets(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	case "StatefulSet":
		_, err = apps.StatefulSets(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	case "DaemonSet":
		_, err = apps.DaemonSets(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	case "Job":
		_, err = o.Client.BatchV1().Jobs(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("touch %s %s/%s: %w", of.kind, of.namespace, of.name, err)
	}
	return nil
}
