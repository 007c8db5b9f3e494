package watchdog

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// Only the oldest WatchedClusters of a namespace are watched, and the others need almost no memory.
func TestClustersBeyondTheMost(t *testing.T) {
	s := watch.New(watch.Kind[*v1alpha1.WatchedCluster, record]{
		Resource: resource, New: &v1alpha1.WatchedCluster{}, Record: readRecord, Share: clusterShare(), Changed: func(watch.Key, *record, *record) {},
	})
	add := func(namespace string, i int) {
		t.Helper()
		o := &v1alpha1.WatchedCluster{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: fmt.Sprintf("c-%04d", i), CreationTimestamp: metav1.NewTime(time.Unix(int64(10_000-i), 0))}}
		o.Spec.KubeconfigSecretName = "cluster"
		if err := s.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	for i := range maxClusters + 2 {
		add("greedy", i)
	}
	add("modest", 0)
	for _, tc := range []struct {
		namespace string
		i         int
		beyond    bool
	}{{"greedy", 0, true}, {"greedy", 1, true}, {"greedy", 2, false}, {"greedy", maxClusters + 1, false}, {"modest", 0, false}} {
		r := s.Get(watch.Key{Namespace: tc.namespace, Name: fmt.Sprintf("c-%04d", tc.i)})
		if r == nil || r.beyond != tc.beyond || (r.spec.KubeconfigSecretName == "") != tc.beyond {
			t.Errorf("%s %d is %+v, want beyond %t", tc.namespace, tc.i, r, tc.beyond)
		}
	}
	if c := acceptedOf(1, errTooMany); c.Status != metav1.ConditionFalse || c.Reason != v1alpha1.ReasonInvalid || c.Message != "only the 1000 oldest WatchedClusters of a namespace are watched" {
		t.Errorf("condition %+v", c)
	}
}
