package main

import (
	"log/slog"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
)

// TestReplace deletes only the nodes that have been Unknown for long enough: a NotReady node still reports.
func TestReplace(t *testing.T) {
	node := func(name string, ready corev1.ConditionStatus, since time.Duration) *corev1.Node {
		return &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{
			{Type: corev1.NodeReady, Status: ready, LastTransitionTime: metav1.NewTime(time.Now().Add(-since))},
		}}}
	}
	client := fake.NewClientset(
		node("ready", corev1.ConditionTrue, time.Hour), node("not-ready", corev1.ConditionFalse, time.Hour),
		node("just-unknown", corev1.ConditionUnknown, 10*time.Second), node("unknown", corev1.ConditionUnknown, time.Minute),
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "new"}},
	)
	if err := replace(t.Context(), client, 30*time.Second, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	left, err := client.CoreV1().Nodes().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for i := range left.Items {
		got[left.Items[i].Name] = true
	}
	if len(got) != 4 || got["unknown"] {
		t.Errorf("left are %v, want all but unknown", got)
	}
}
