package cluster

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
)

// replicaPod returns a running replica on a node with the same name, with ContainersReady from the kubelet and Ready of
// the pod.
func replicaPod(name string, containers, pod corev1.ConditionStatus) corev1.Pod {
	p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{NodeName: "node-" + name}}
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.ContainersReady, Status: containers}, {Type: corev1.PodReady, Status: pod}}
	return p
}

func TestAnsweringReplicas(t *testing.T) {
	const yes, no = corev1.ConditionTrue, corev1.ConditionFalse
	ready, lost, failing := replicaPod("ready", yes, yes), replicaPod("lost", yes, no), replicaPod("failing", no, no)
	evicted := replicaPod("evicted", yes, no)
	evicted.DeletionTimestamp = &metav1.Time{}
	gated := replicaPod("gated", yes, no)
	gated.Spec.ReadinessGates = []corev1.PodReadinessGate{{ConditionType: "x"}}
	unknown := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{
		Type: corev1.NodeReady, Status: corev1.ConditionUnknown, Reason: "NodeStatusUnknown", Message: "Kubelet stopped posting node status.",
		LastTransitionTime: metav1.NewTime(time.Date(2026, 11, 27, 10, 0, 0, 0, time.UTC)),
	}}}}
	back := &corev1.Node{Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: yes}}}}
	const why = "the API server has lost contact with its node node-lost"
	tests := map[string]struct {
		pods []corev1.Pod
		node *corev1.Node // node of the lost pod
		want []string
		err  string
	}{
		"one is Ready":          {[]corev1.Pod{failing, ready}, nil, []string{"ready: "}, ""},
		"Ready ones come first": {[]corev1.Pod{lost, ready}, unknown, []string{"ready: ", "lost: " + why + ": its condition Ready is Unknown since 2026-11-27T10:00:00Z: NodeStatusUnknown: Kubelet stopped posting node status."}, ""},
		"nodes may not be read": {[]corev1.Pod{lost}, nil, []string{"lost: " + why}, ""},
		"the node is back":      {[]corev1.Pod{lost}, back, []string{"lost: " + why + ", which is Ready again"}, ""},
		"it is to be evicted":   {[]corev1.Pod{evicted}, nil, []string{"evicted: the API server has lost contact with its node node-evicted"}, ""},
		"none may answer":       {[]corev1.Pod{failing, gated}, nil, nil, `no replica of the control plane in namespace "sonde-system" is Ready: failing (its readiness probe fails), gated (its readiness probe fails)`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			replicas, err := Plane{Namespace: "sonde-system", Replicas: tc.pods}.answering(map[string]*corev1.Node{"node-lost": tc.node})
			var got []string
			for _, r := range replicas {
				got = append(got, r.pod+": "+r.lost)
			}
			if !slices.Equal(got, tc.want) || (err != nil || tc.err != "") && fmt.Sprint(err) != tc.err {
				t.Errorf("answering() = %q, %v, want %q, %s", got, err, tc.want, tc.err)
			}
		})
	}
}

// A lost replica does not respond: Connect has enough time to try the next one.
func TestFirstThatAnswers(t *testing.T) {
	c := &Cluster{Config: &rest.Config{Host: "https://api"}}
	replicas := []replica{{pod: "hangs"}, {pod: "refuses"}, {"lost", "its node is lost"}}
	for name, tc := range map[string]struct {
		answers string
		after   time.Duration
		err     []string
	}{
		"the last one": {"lost", forwardTimeout, nil},
		"none": {"", forwardTimeout, []string{
			"forward a port to pod hangs in namespace shop: no connection within 10s",
			"forward a port to pod refuses in namespace shop: no response from the API server at https://api: refused",
			"forward a port to pod lost in namespace shop: no response from the API server at https://api: refused (its node is lost)",
		}},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				r, f, err := c.firstThatAnswers(t.Context(), "shop", replicas, func(ctx context.Context, _, pod string) (*forward, error) {
					switch pod {
					case "hangs":
						<-ctx.Done()
						return nil, ctx.Err()
					case tc.answers:
						return &forward{}, nil
					}
					return nil, errors.New("refused")
				})
				if r.pod != tc.answers || (f != nil) != (tc.answers != "") || time.Since(start) != tc.after {
					t.Errorf("%q answers after %s", r.pod, time.Since(start))
				}
				if got := fmt.Sprint(err); err != nil && got != strings.Join(tc.err, "\n") || (err != nil) != (tc.err != nil) {
					t.Errorf("error %s", got)
				}
			})
		})
	}
}
