//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/sonde-mesh/sonde/internal/podcause"
)

// TestErrorsCounted holds back the failures of ten guarded pods on a node whose kubelet counts errored probes as
// failures. Held as errored, the kubelet restarts them, and an event and sondectl check report that. Held as
// warnings, they restart within the budget. `make e2e-counted` has such a cluster, only for this test, because it
// changes the whole mesh.
func TestErrorsCounted(t *testing.T) {
	n := newNamespace(t, injected)
	node := nodeThatCounts(t, n)
	const pods, budget = 10, 2
	f := n.newFleet("web", pods, "enabled", func(template *corev1.PodTemplateSpec) {
		template.Spec.NodeName = node
		template.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	})
	n.create(newBudget("web", fmt.Sprintf("maxUnavailable: %d", budget)))
	f.watch()
	f.fail(false)
	n.wait("an event about a restart without a grant", func() error {
		if len(n.unheld(t.Context())) == 0 {
			return errors.New("the events name no restart")
		}
		return nil
	})
	n.wait("sondectl check to name "+node, func() error {
		lines := checkLines(t, "guarded liveness")
		names := func(note string) bool { return strings.HasPrefix(note, node+": ") }
		if len(lines) != 1 || lines[0].Level != "fail" || !slices.ContainsFunc(lines[0].Notes, names) {
			return fmt.Errorf("it says %+v", lines)
		}
		return nil
	})
	f.waitHealed()

	cp := &namespace{t: t, name: systemNamespace}
	cp.configure("hold: errored", "hold: warning")
	defer cp.configure("hold: warning", "hold: errored")
	f.waitReady("failures are held as warnings")
	held := n.holdsAs("warning")
	n.wait("all agents to hold failures as warnings", held)
	before := n.unheld(t.Context())
	f.fail(false)
	f.waitHealed()
	f.check(budget)
	if after := n.unheld(t.Context()); len(after) > len(before) {
		t.Errorf("restarts without a grant, while failures are held as warnings: %q", after)
	}
	warnings, err := cluster.client.CoreV1().Events(n.name).List(t.Context(), metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", "ProbeWarning").String()})
	if err != nil || !slices.ContainsFunc(warnings.Items, func(e corev1.Event) bool { return strings.Contains(e.Message, "HELD by Sonde: ") }) {
		t.Errorf("%d warnings of the kubelet, %v, want one that contains HELD", len(warnings.Items), err)
	}
}

// nodeThatCounts returns a node whose kubelet counts errored probes as failures, as sondectl detects it. The test
// fails in a cluster without such a node.
func nodeThatCounts(t *testing.T, n *namespace) string {
	t.Helper()
	for _, line := range checkLines(t, "errored probes", "--nodes", "--nodes-namespace="+n.name) {
		if line.Level == "fail" {
			return line.Notes[0]
		}
	}
	t.Fatal("the kubelet of each node discards errored probes: make e2e-counted, or K8S_NODES=1.37.2,1.37.2+probe-error-as-failure")
	return ""
}

// unheld returns the notes of events about restarts without a grant.
func (n *namespace) unheld(ctx context.Context) (notes []string) {
	n.t.Helper()
	all, err := cluster.client.CoreV1().Events(n.name).List(ctx, metav1.ListOptions{FieldSelector: fields.OneTermEqualSelector("reason", podcause.RestartUnheld).String()})
	if err != nil {
		n.t.Fatal(err)
	}
	for i := range all.Items {
		notes = append(notes, all.Items[i].InvolvedObject.Name+": "+all.Items[i].Message)
	}
	return notes
}

// holdsAs returns a check that each sidecar of the fleet has received how to hold failures.
func (n *namespace) holdsAs(hold string) func() error {
	return func() error {
		for _, pod := range n.podsOf("web") {
			log, err := cluster.client.CoreV1().Pods(n.name).GetLogs(pod, &corev1.PodLogOptions{Container: "kuma-sidecar"}).DoRaw(n.t.Context())
			if err != nil {
				return err
			}
			if !strings.Contains(string(log), `"hold":"`+hold+`"`) {
				return fmt.Errorf("the agent of %s does not hold as %s", pod, hold)
			}
		}
		return nil
	}
}
