package catchup

import (
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	away    = `Internal error occurred: failed calling webhook "namespace.inject.sonde.dev": failed to call webhook: connection refused`
	another = `Internal error occurred: failed calling webhook "x.example.com": connection refused`
	refused = `admission webhook "namespace.inject.sonde.dev" denied the request: this pod cannot join the mesh`
)

// The webhook would reject a rejected pod again, and webhooks of other programs are ignored.
func TestFailed(t *testing.T) {
	s := &search{Options: Options{Webhooks: ".inject.sonde.dev"}}
	tests := map[string]struct {
		conditions []appsv1.ReplicaSetCondition
		want       bool
	}{
		"none":          {nil, false},
		"our webhook":   {[]appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: away}}, true},
		"it is over":    {[]appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionFalse, Message: away}}, false},
		"another kind":  {[]appsv1.ReplicaSetCondition{{Type: "Other", Status: corev1.ConditionTrue, Message: away}}, false},
		"another's":     {[]appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: another}}, false},
		"a refused pod": {[]appsv1.ReplicaSetCondition{{Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: refused}}, false},
		"a quota, and a name that ends alike": {[]appsv1.ReplicaSetCondition{{
			Type: appsv1.ReplicaSetReplicaFailure, Status: corev1.ConditionTrue, Message: `exceeded quota: a.inject.sonde.dev`,
		}}, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if got := s.failed(tc.conditions); got != tc.want {
				t.Errorf("failed() = %t", got)
			}
		})
	}
}

func TestFailureOfAnEvent(t *testing.T) {
	s := &search{Options: Options{Webhooks: ".inject.sonde.dev"}}
	first, last := time.Unix(1000, 0), time.Unix(2000, 0)
	tests := map[string]struct {
		kind, message string
		event         corev1.Event
		want          bool
		at            time.Time
	}{
		"core/v1":                    {"Job", away, corev1.Event{EventTime: metav1.NewMicroTime(first), LastTimestamp: metav1.NewTime(last)}, true, last},
		"events.k8s.io":              {"DaemonSet", away, corev1.Event{EventTime: metav1.NewMicroTime(first)}, true, first},
		"a series of these":          {"StatefulSet", away, corev1.Event{EventTime: metav1.NewMicroTime(first), Series: &corev1.EventSeries{LastObservedTime: metav1.NewMicroTime(last)}}, true, last},
		"a ReplicaSet":               {"ReplicaSet", away, corev1.Event{LastTimestamp: metav1.NewTime(last)}, true, last},
		"a kind that is not touched": {kind: "CronJob", message: away},
		"a refused pod":              {kind: "Job", message: refused},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			tc.event.Message, tc.event.InvolvedObject = tc.message, corev1.ObjectReference{Kind: tc.kind, Namespace: "shop", Name: "web"}
			got, ok := s.failure(&tc.event)
			if ok != tc.want || ok && (!got.at.Equal(tc.at) || got.owner != owner{tc.kind, "shop", "web"}) {
				t.Errorf("failure() = %v, %t", got, ok)
			}
		})
	}
}
