// Package catchup makes controllers retry at once to create pods, if that failed while the webhook was unavailable: it
// updates the owner of the pods. A ReplicaSet would wait up to 17 minutes.
package catchup

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/pager"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/events"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/health/heartbeat"
)

// annotationRetry is the annotation whose change makes an owner retry.
const annotationRetry = mesh.OwnPrefix + "retry"

// rounds are the times of searches for ReplicaSets after this replica has become the leader, since the API server may
// reach the webhook only after a while. After the last round, events show which owners wait, and each owner is touched
// at most once per pause: the webhook may be unavailable although its control plane runs.
var rounds = []time.Duration{2 * time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute}

const pause = time.Minute

// requestTimeout bounds all requests except watches.
const requestTimeout = 30 * time.Second

// Options of Run.
type Options struct {
	// Client of the API server, without a timeout: it watches. Required.
	Client kubernetes.Interface
	// Webhooks is the suffix of the names of our webhooks in the messages of failed requests. Required.
	Webhooks string
	// Logger. Required.
	Logger *slog.Logger
	// Loop watches Run. Default: none.
	Loop *heartbeat.Loop
}

// owner is an object that creates pods.
type owner struct {
	kind, namespace, name string
}

// search has the results of one Run.
type search struct {
	Options
	read chan struct{} // receives once all existing events are read

	mu      sync.Mutex
	waiting map[owner]struct{} // owners with a failure since their last touch
}

// Run touches the owners that wait for the webhook until ctx ends, and then returns nil. Only one replica may run it.
func Run(ctx context.Context, o Options) error {
	s := &search{Options: o, read: make(chan struct{}, 1), waiting: map[owner]struct{}{}}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error {
		s.run(ctx, func() { group.Go(func() error { return s.events().Run(ctx) }) })
		return nil
	})
	return group.Wait()
}

// run searches for ReplicaSets in rounds, then follows events.
func (s *search) run(ctx context.Context, follow func()) {
	started, following := time.Now(), false
	for round := 0; ; {
		next := pause
		if round < len(rounds) {
			next = time.Until(started.Add(rounds[round]))
		}
		timer := time.NewTimer(next)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-s.read:
			timer.Stop()
		case <-timer.C:
			if round < len(rounds) {
				round++
				err := s.findReplicaSets(ctx)
				if apierrors.IsForbidden(err) {
					s.Logger.InfoContext(ctx, "no more searches for pods that could not be created, "+
						"Kubernetes retries within 17 minutes",
						"err", err)
					return
				}
				if err != nil && ctx.Err() == nil {
					s.Logger.WarnContext(ctx, "search for pods that could not be created failed", "err", err)
				}
			}
			if !following {
				following = true
				follow()
			}
		}
		s.touchAll(ctx)
	}
}

// touchAll touches the waiting owners. An owner that it fails to touch stays in waiting.
func (s *search) touchAll(ctx context.Context) {
	s.Loop.Begin()
	defer s.Loop.End()
	s.mu.Lock()
	all := slices.Collect(maps.Keys(s.waiting))
	clear(s.waiting)
	s.mu.Unlock()
	for _, w := range all {
		s.Loop.Beat() // each touch may wait for the API server
		log := s.Logger.With("kind", w.kind, "namespace", w.namespace, "name", w.name)
		err := s.touch(ctx, w)
		if err == nil {
			log.InfoContext(ctx, "retrying pods that were refused while the webhook was unavailable")
			continue
		}
		s.wait(w)
		if ctx.Err() == nil {
			log.WarnContext(ctx, "retry of pods failed", "err", err)
		}
	}
}

func (s *search) wait(o owner) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.waiting[o] = struct{}{}
}

// ours reports whether a message is about a call of one of our webhooks that failed. It is false for a pod that the
// webhook rejected, since it would reject the pod again.
func (s *search) ours(message string) bool {
	_, after, failed := strings.Cut(message, `failed calling webhook "`)
	name, _, _ := strings.Cut(after, `"`)
	return failed && strings.HasSuffix(name, s.Webhooks)
}

// findReplicaSets finds waiting ReplicaSets by their condition, since the event of an old failure may have expired.
func (s *search) findReplicaSets(ctx context.Context) error {
	s.Loop.Begin()
	defer s.Loop.End()
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	list := pager.New(func(ctx context.Context, options metav1.ListOptions) (runtime.Object, error) {
		return s.Client.AppsV1().ReplicaSets("").List(ctx, options)
	})
	err := list.EachListItem(ctx, metav1.ListOptions{}, func(obj runtime.Object) error {
		if rs, ok := obj.(*appsv1.ReplicaSet); ok && s.failed(rs.Status.Conditions) {
			s.wait(owner{"ReplicaSet", rs.Namespace, rs.Name})
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("list ReplicaSets: %w", err)
	}
	return nil
}

func (s *search) failed(conditions []appsv1.ReplicaSetCondition) bool {
	return slices.ContainsFunc(conditions, func(c appsv1.ReplicaSetCondition) bool {
		return c.Type == appsv1.ReplicaSetReplicaFailure && c.Status == corev1.ConditionTrue && s.ours(c.Message)
	})
}

// lastFailure is how old an owner's last event may be for the owner to be still waiting: controllers back off by at
// most 1,000 s.
const lastFailure = 20 * time.Minute

// failure is the record of an event.
type failure struct {
	owner
	at time.Time
}

// events follows the events of pods whose creation failed. StatefulSets, DaemonSets and Jobs report failures only by
// events.
func (s *search) events() *watch.Store[*corev1.Event, failure] {
	return watch.New(watch.Kind[*corev1.Event, failure]{
		Client: s.Client.CoreV1().RESTClient(), Resource: "events", Fields: "reason=FailedCreate", New: &corev1.Event{},
		Record: s.failure,
		Changed: func(_ watch.Key, _, now *failure) {
			if now != nil && time.Since(now.at) <= lastFailure {
				s.wait(now.owner)
			}
		},
		Synced: func() { s.read <- struct{}{} },
	})
}

// failure returns the record of an event, and false for an event that is not about our webhooks.
func (s *search) failure(e *corev1.Event) (failure, bool) {
	of := owner{e.InvolvedObject.Kind, e.InvolvedObject.Namespace, e.InvolvedObject.Name}
	switch of.kind {
	case "ReplicaSet", "StatefulSet", "DaemonSet", "Job":
		return failure{of, events.LastSeen(e)}, s.ours(e.Message)
	}
	return failure{}, false
}

// touch changes annotationRetry of an owner.
func (s *search) touch(ctx context.Context, of owner) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]string{
		annotationRetry: time.Now().UTC().Format(time.RFC3339Nano),
	}}})
	if err != nil {
		return fmt.Errorf("encode annotation: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, requestTimeout)
	defer cancel()
	apps, options := s.Client.AppsV1(), metav1.PatchOptions{}
	switch of.kind {
	case "ReplicaSet":
		_, err = apps.ReplicaSets(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	case "StatefulSet":
		_, err = apps.StatefulSets(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	case "DaemonSet":
		_, err = apps.DaemonSets(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	case "Job":
		_, err = s.Client.BatchV1().Jobs(of.namespace).Patch(ctx, of.name, types.MergePatchType, patch, options)
	}
	if err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("touch %s %s/%s: %w", of.kind, of.namespace, of.name, err)
	}
	return nil
}
