package source

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// While the kubelet restarts all containers of a pod, its endpoints are removed until the pod is Ready, whatever the
// slice says.
func TestRestartTakesEndpointsAway(t *testing.T) {
	ready := proxied("10.0.0.1", 8080, "web", nil)
	unready := proxied("10.0.0.1", 8080, "web", notReady)
	frozen := unready
	frozen.Health, frozen.Frozen = &mesh.EndpointHealth{Ready: new(bool), Serving: new(true)}, true
	stopping := unready
	stopping.Restarting = true
	tests := map[string]struct {
		pod   func(*corev1.Pod)
		slice discoveryv1.EndpointConditions
		want  mesh.ServiceEndpoint
		// unseen makes the pod's node silent, in a frozen zone.
		unseen bool
	}{
		"stops":                              {restarting("True", failed), isReady, stopping, false},
		"stops, is still Ready":              {restarting("True", well), isReady, stopping, false},
		"stops, though it is published":      {restarting("True", failed), isPublished, stopping, false},
		"stops, though it is being deleted":  {restarting("True", both(failed, terminating)), isDraining, stopping, false},
		"stops, on a node that is not heard": {restarting("True", well), isNotReady, stopping, true},
		"stops, of a drained pod":            {restarting("True", both(failed, annotated(mesh.AnnotationDrain, ""))), isReady, stopping, false},
		"marked on a node that is not heard": {restarting("False", marked), isNotReady, frozen, true},
		"starts":                             {restarting("False", failed), isReady, unready, false},
		"starts, and is published":           {restarting("False", failed), isPublished, ready, false},
		"Ready again":                        {restarting("False", well), isReady, ready, false},
		"Ready again, before the slice":      {restarting("False", well), isNotReady, unready, false},
		"not known":                          {restarting("Unknown", failed), isReady, unready, false},
		"Ready since, and the condition is left": {both(restarting("True", well), func(p *corev1.Pod) {
			p.Status.Conditions[1].LastTransitionTime = metav1.Unix(1, 0)
		}), isReady, ready, false},
		"no such rule": {failed, isReady, ready, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			r := newRecorder()
			slice := sliceOf("web-1", "web", webPorts, endpoint("10.0.0.1", "web", "u-1", tc.slice))
			on := seen("n")
			if tc.unseen {
				on = unseen("n")
			}
			s := newSynced(t, r, on, pod("web", "u-1", "10.0.0.1", onNode("n"), well), webService, slice)
			s.Freeze(Kept{"a": AllKept})
			s.derive()
			s.change(t, pod("web", "u-1", "10.0.0.1", onNode("n"), tc.pod))
			if diff := cmp.Diff([]mesh.ServiceEndpoint{tc.want}, r.service(webName).Spec.Endpoints); diff != "" {
				t.Errorf("endpoints (-want +got):\n%s", diff)
			}
		})
	}
}
