package source

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	lifecyclev1alpha1 "k8s.io/api/lifecycle/v1alpha1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/discovery"

	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/internal/cut"
	"github.com/sonde-mesh/sonde/internal/run"
)

const (
	// evictionsEvery is how often Source checks whether the API server serves EvictionRequests.
	evictionsEvery   = time.Minute
	evictionsTimeout = 10 * time.Second
	// maxRequester bounds a requester's name in a reason, in bytes.
	maxRequester     = 64
	evictionKind     = "EvictionRequest"
	evictionResource = "evictionrequests"
)

// eviction is the record of an EvictionRequest (KEP-4563) for a pod.
type eviction struct {
	pod       podRef // zero if the request is beyond its namespace's share
	uid       types.UID
	requester string
	problem   string
}

type evictions = watch.Store[*lifecyclev1alpha1.EvictionRequest, eviction]

func (s *Source) newEvictions(share int) *evictions {
	return watch.New(watch.Kind[*lifecyclev1alpha1.EvictionRequest, eviction]{
		Client:   s.o.Client.LifecycleV1alpha1().RESTClient(),
		Resource: evictionResource, New: &lifecyclev1alpha1.EvictionRequest{},
		Share: evictionShare(share), Record: readEviction, Changed: s.evictionChanged,
	})
}

// endedConditions are the conditions of requests that have ended.
var endedConditions = []lifecyclev1alpha1.EvictionConditionType{
	lifecyclev1alpha1.EvictionConditionFailed, lifecyclev1alpha1.EvictionConditionTargetEvicted,
}

// readEviction returns false for a withdrawn or ended request. Its pod has the namespace of the request.
func readEviction(r *lifecyclev1alpha1.EvictionRequest) (eviction, bool) {
	pod := r.Spec.Target.Pod
	wanted := r.Spec.Intent == lifecyclev1alpha1.EvictionRequestIntentEviction
	if !wanted || pod == nil || len(pod.Name) > maxPodName || len(pod.UID) > maxUID {
		return eviction{}, false
	}
	for _, ended := range endedConditions {
		if meta.IsStatusConditionTrue(r.Status.Conditions, string(ended)) {
			return eviction{}, false
		}
	}
	return eviction{
		pod: podRef{pod.UID, watch.Key{Namespace: r.Namespace, Name: pod.Name}}, uid: r.UID,
		requester: cut.Marked(r.Spec.Requester, maxRequester),
	}, true
}

func evictionShare(bytes int) watch.Share[eviction] {
	problem := beyondShare("EvictionRequests", bytes)
	return watch.Share[eviction]{
		Bytes:  bytes,
		Takes:  func(e *eviction) int { return watch.Size(e) + perObject },
		Beyond: func(e *eviction) eviction { return eviction{uid: e.uid, problem: problem} },
	}
}

func (e *eviction) wrong() string {
	if e == nil {
		return ""
	}
	return e.problem
}

func (s *Source) evictionChanged(key watch.Key, before, now *eviction) {
	s.noteProblem(evictionKind, key, before.wrong(), now.wrong())
	s.mark(func(d *dirty) {
		if before != nil {
			if requests := s.evicting[before.pod]; len(requests) > 1 {
				delete(requests, key.Name)
			} else {
				delete(s.evicting, before.pod)
			}
		}
		if now != nil && now.problem == "" {
			if s.evicting[now.pod] == nil {
				s.evicting[now.pod] = map[string]string{}
			}
			s.evicting[now.pod][key.Name] = now.requester
		}
		for _, e := range []*eviction{before, now} {
			if e != nil && e.problem == "" {
				d.pods[e.pod.key], d.refs[e.pod] = struct{}{}, struct{}{}
			}
		}
	})
}

// evictionOf describes the eviction of a pod by its first requester, "" if no eviction is requested. The caller holds
// mu.
func (s *Source) evictionOf(pod podRef) string {
	requests := s.evicting[pod]
	if len(requests) == 0 {
		return ""
	}
	return fmt.Sprintf("eviction requested by %q", slices.Min(slices.Collect(maps.Values(requests))))
}

// followEvictions reads EvictionRequests while the API server serves them. The API is alpha, so nothing waits for it.
func (s *Source) followEvictions(ctx context.Context) error {
	for range run.Every(ctx, evictionsEvery) {
		if s.servesEvictions(ctx, false) {
			s.o.Logger.Info("reading EvictionRequests, the pods that they name drain")
			s.readEvictions(ctx)
		}
	}
	return nil
}

// readEvictions follows EvictionRequests until the API server no longer serves them, and then forgets them.
func (s *Source) readEvictions(ctx context.Context) {
	reading, stop := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = s.evictions.Run(reading) // always nil
	}()
	for range run.Ticks(ctx, evictionsEvery) {
		if !s.servesEvictions(ctx, true) {
			break
		}
	}
	stop()
	<-ended
	if ctx.Err() == nil {
		s.o.Logger.Warn("the API server no longer serves EvictionRequests, the pods that they named stop draining")
		_ = s.evictions.Replace(nil, "") // fails only for an object of another type
	}
}

// servesEvictions asks the discovery API, which every account may read. If that does not answer, it returns before, the
// previous result.
func (s *Source) servesEvictions(ctx context.Context, before bool) bool {
	ctx, cancel := context.WithTimeout(ctx, evictionsTimeout)
	defer cancel()
	client := discovery.ToDiscoveryInterfaceWithContext(s.o.Client.Discovery())
	served, err := client.ServerResourcesForGroupVersionWithContext(ctx, lifecyclev1alpha1.SchemeGroupVersion.String())
	switch {
	case apierrors.IsNotFound(err):
		return false
	case errors.Is(err, context.Canceled): // shutdown
		return before
	case err != nil:
		s.o.Logger.Warn("failed to check whether the API server serves EvictionRequests, retrying", "err", err)
		return before
	}
	return slices.ContainsFunc(served.APIResources, func(r metav1.APIResource) bool { return r.Name == evictionResource })
}
