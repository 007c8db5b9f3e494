package describe

import (
	"fmt"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Round describes why no restarts are granted in the mesh or a namespace, and which kubelets restart without a grant.
// It is empty if restarts can be granted.
func Round(r *adminv1.RestartRound) []string {
	if r == nil {
		return []string{"the control plane has no leader: no restarts are granted"}
	}
	var texts []string
	switch r.GetMode() {
	case "enforce":
	case "dryRun":
		texts = append(texts, "the mode is dryRun: the kubelet restarts containers by itself, and the decisions shown have no effect")
	case "off":
		texts = append(texts, "the mode is off: the kubelet restarts containers by itself")
	default:
		texts = append(texts, fmt.Sprintf("the mode is %q, which this sondectl does not support", r.GetMode()))
	}
	if r.GetBreakerOpen() {
		texts = append(texts, fmt.Sprintf("the breaker is open, no restarts are granted: within a minute %d of %d guarded containers failed, of %d workloads",
			r.GetFailed(), r.GetGuarded(), r.GetWorkloads()))
	}
	if namespace := r.GetBreakerNamespace(); namespace != "" {
		texts = append(texts, fmt.Sprintf("the breaker is open for namespace %s, no restarts are granted there: within a minute %d of %d guarded containers failed, %d of them in this namespace",
			namespace, r.GetFailed(), r.GetGuarded(), r.GetBreakerNamespaceFailed()))
	}
	if nodes := r.GetUnheld(); len(nodes) > 0 {
		texts = append(texts, fmt.Sprintf("kubelets of %d nodes have restarted containers although their failures were held back, first on node %s: see sondectl check --installed",
			len(nodes), nodes[0].GetName()))
	}
	return texts
}
