package admission_test

import (
	"maps"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admission/v1"
	authenticationv1 "k8s.io/api/authentication/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// A daemon may write its condition on its own node, and change nothing else of any node.
func TestCNIConditionPolicy(t *testing.T) {
	policy := policyOf(t, "sonde-cni-condition", "--set=cni.enabled=true")
	condition := func(kind, status string) any { return map[string]any{"type": kind, "status": status} }
	node := func(change func(node, status map[string]any)) map[string]any {
		status := map[string]any{"capacity": map[string]any{"cpu": "4"}, "conditions": []any{condition("Ready", "True")}}
		n := map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "node1", "labels": map[string]any{"zone": "a"}}, "status": status}
		change(n, status)
		return n
	}
	own := func(_, status map[string]any) {
		status["conditions"] = []any{condition("Ready", "True"), condition(mesh.ConditionCNIReady, "True")}
	}
	tests := map[string]struct {
		change func(node, status map[string]any)
		node   []string
		want   string
	}{
		"its condition": {own, []string{"node1"}, ""},
		"another node":  {own, []string{"node2"}, "may only change its own node"},
		"two nodes":     {own, []string{"node1", "node2"}, "may only change its own node"},
		"no node":       {own, nil, "may only change its own node"},
		"another condition": {func(_, status map[string]any) {
			status["conditions"] = []any{condition("Ready", "False")}
		}, []string{"node1"}, "may only change the condition " + mesh.ConditionCNIReady},
		"one more condition": {func(_, status map[string]any) {
			status["conditions"] = []any{condition("Ready", "True"), condition("DiskPressure", "True")}
		}, []string{"node1"}, "may only change the condition " + mesh.ConditionCNIReady},
		"capacity":                   {func(_, status map[string]any) { status["capacity"] = map[string]any{"cpu": "400"} }, []string{"node1"}, "may only change a condition in the status of nodes"},
		"a field of a later release": {func(_, status map[string]any) { status["later"] = "x" }, []string{"node1"}, "may only change a condition in the status of nodes"},
		"a label": {func(node, _ map[string]any) {
			metadata := maps.Clone(node["metadata"].(map[string]any))
			metadata["labels"] = map[string]any{"zone": "b"}
			node["metadata"] = metadata
		}, []string{"node1"}, "must not change the metadata of nodes"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			request := &admissionv1.AdmissionRequest{}
			if tc.node != nil {
				request.UserInfo.Extra = map[string]authenticationv1.ExtraValue{"authentication.kubernetes.io/node-name": tc.node}
			}
			before := node(func(map[string]any, map[string]any) {})
			if why := allowsRequest(t, policy, "Node", "nodes", before, node(tc.change), request); (why == "") != (tc.want == "") || !strings.Contains(why, tc.want) {
				t.Errorf("%q, want %q", why, tc.want)
			}
		})
	}
}
