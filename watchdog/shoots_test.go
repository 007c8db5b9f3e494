package watchdog

import (
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/watchdog/cluster"
	"github.com/sonde-mesh/sonde/watchdog/gardener"
)

// A shoot gets one WatchedCluster, which is probed while the shoot runs, and created again after a deletion.
func TestShoots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newSeed(t, func(w *Watchdog) {
			w.o.Gardener, w.o.FileCluster = true, "config"
			w.file = &v1alpha1.WatchedClusterSpec{
				KubeconfigSecretName: "hangs",
				Dependants:           []v1alpha1.WatchedDependant{{Ref: v1alpha1.DependantRef{APIVersion: "apps/v1", Kind: "Deployment", Name: "kcm"}, ScaleUp: &v1alpha1.ScaleInfo{}, ScaleDown: &v1alpha1.ScaleInfo{}}},
				Settings:             v1alpha1.WatchSettings{InitialDelay: &metav1.Duration{}},
			}
		})
		defer s.term(1)()
		is := func(what string, hanging, applies int) {
			t.Helper()
			_, probes := s.probed("hangs")
			s.mu.Lock()
			defer s.mu.Unlock()
			if probes != hanging || s.applies != applies {
				t.Errorf("%s: %d probes go on, want %d; it was applied %d times, want %d", what, probes, hanging, s.applies, applies)
			}
		}
		s.shoot(false)
		is("a new shoot", 1, 1)
		time.Sleep(time.Minute)
		s.shoot(true)
		is("it is hibernated", 0, 1)
		s.count(func() {
			if c := meta.FindStatusCondition(s.objects["config"].Status.Conditions, cluster.ConditionProbed); c == nil || c.Reason != string(gardener.Hibernated) {
				t.Errorf("it is hibernated: the condition is %+v", c)
			}
		})
		s.shoot(false)
		is("it runs again", 1, 1)
		remove := func() {
			t.Helper()
			if err := s.clusters.Delete(s.objects["config"]); err != nil {
				t.Fatal(err)
			}
		}
		remove()
		is("its object is deleted", 1, 2)
		time.Sleep(time.Minute)
		s.count(func() { s.refuses = true })
		remove()
		time.Sleep(3*retryEvery - time.Second)
		is("the API server refuses", 0, 5)
		if n := strings.Count(s.log.String(), "failed to write WatchedClusters of shoots"); n < 1 || n > 3 {
			t.Errorf("the log says %d times that it is not written, want once per try at most", n)
		}
		s.count(func() { s.refuses = false })
		time.Sleep(time.Second)
		is("it does no more", 1, 6)
	})
}

// shoot makes the shoot of namespace n run, or hibernates it.
func (s *seed) shoot(hibernated bool) {
	s.t.Helper()
	raw := `{"apiVersion": "core.gardener.cloud/v1beta1", "kind": "Shoot", "spec": {"provider": {"workers": [{"name": "w"}]}}, "status": {"lastOperation": {"type": "Create", "state": "Succeeded"}}}`
	if hibernated {
		raw = strings.Replace(raw, `"spec": {`, `"spec": {"hibernation": {"enabled": true}, `, 1)
	}
	c := &gardener.Cluster{ObjectMeta: metav1.ObjectMeta{Name: "n", UID: "shoot"}, Spec: gardener.ClusterSpec{Shoot: runtime.RawExtension{Raw: []byte(raw)}}}
	if err := s.shoots.Add(c); err != nil {
		s.t.Fatal(err)
	}
}
