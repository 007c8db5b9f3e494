package describe

import (
	"fmt"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Round says why nothing is granted, whatever fails; none if something may be.
func Round(r *adminv1.RestartRound) []string {
	if r == nil {
		return []string{"no leader of the control plane decides on restarts: no restart is granted"}
	}
	var texts []string
	switch r.GetMode() {
	case "enforce":
	case "dryRun":
		texts = append(texts, "the mode is dryRun: the kubelet restarts containers by itself, and what is shown is not followed")
	case "off":
		texts = append(texts, "the mode is off: the kubelet restarts containers by itself")
	default:
		texts = append(texts, fmt.Sprintf("the mode is %q, which this sondectl does not know", r.GetMode()))
	}
	if r.GetBreakerOpen() {
		texts = append(texts, fmt.Sprintf("the breaker is open: within a minute %d of %d guarded containers failed, of %d workloads, so that no restart is granted",
			r.GetFailed(), r.GetGuarded(), r.GetWorkloads()))
	}
	if namespace := r.GetBreakerNamespace(); namespace != "" {
		texts = append(texts, fmt.Sprintf("the breaker is open for namespace %s alone: within a minute %d of %d guarded containers failed, and %d of them there, so that no restart is granted in it",
			namespace, r.GetFailed(), r.GetGuarded(), r.GetBreakerNamespaceFailed()))
	}
	return texts
}
