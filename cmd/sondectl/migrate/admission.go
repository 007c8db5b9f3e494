package migrate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// admission is the webhook's result for new pods of a workload.
type admission struct {
	// template is the workload's pod template, restored if a user injected it by hand. unreadable is the error of
	// restoring.
	template   *corev1.Pod
	unreadable error
	// selection says whether Sonde injects the pods, and known whether selection is certain. misselected is the error for
	// which the webhook rejects them.
	selection   webhook.Selection
	known       bool
	misselected error
	// to is the requested mode, and toBy the object that requests it, "" for the default. The other fields assume that the
	// pods are selected.
	to   mesh.ProbesMode
	toBy string
	// pod is a new pod, nil if refused is an error.
	pod     *corev1.Pod
	refused error
	// decisions are about the probes of template, port is the virtual port, and warnings are the webhook's.
	decisions []webhook.Decision
	port      int32
	warnings  []string
}

// admit computes the webhook's result for new pods of a workload. o.ProbesMode is the mode of pods that request none.
func (c *Cluster) admit(w *workload, o webhook.Options) *admission {
	a := &admission{}
	var rewritten map[string]bool
	a.template, rewritten, a.unreadable = restore(w.template, sidecarOf(w.template))
	a.selection, a.known, a.misselected = c.selected(w, a.template, o)
	if a.to, a.toBy, a.refused = c.asked(w, o.ProbesMode); a.refused != nil {
		return a
	}
	o.ProbesMode = a.to
	document, err := notRewritten(w.unread, rewritten).Encode(a.template)
	if err != nil {
		a.refused = err
		return a
	}
	a.refused = a.inject(document, o)
	return a
}

// inject computes the webhook's result for a pod, and returns the error if the webhook rejects the pod.
func (a *admission) inject(document []byte, o webhook.Options) error {
	decisions, port, err := webhook.ExplainJSON(document, o)
	if err != nil {
		return err
	}
	a.decisions, a.port = decisions, port
	injected, warnings, err := webhook.InjectJSON(document, o)
	a.warnings = warnings
	if err != nil {
		return err
	}
	a.pod, err = webhook.DecodePod(injected)
	return err
}

// unselected reports whether Sonde certainly does not inject new pods.
func (a *admission) unselected() bool {
	return a.misselected == nil && a.known && !a.selection.Injected
}

// clashes returns why the webhook would reject new pods, one entry for each line.
func (a *admission) clashes() []string { return linesOf(a.unreadable, a.misselected, a.refused) }

// problem returns why the webhook rejects new pods, "" if it does not. It rejects none without a label that selects
// them; if the namespace is unknown, existing injected pods show that there is a label.
func (a *admission) problem(injected bool) string {
	asked := a.misselected != nil || a.known && a.selection.Injected || injected && a.selection.Why == ""
	if !asked {
		return ""
	}
	return strings.Join(a.clashes(), "; ")
}

// linesOf returns the lines of errors, each once.
func linesOf(errs ...error) []string {
	all := []string{}
	for _, err := range errs {
		if err == nil {
			continue
		}
		for line := range strings.Lines(err.Error()) {
			if line = strings.TrimSpace(line); !slices.Contains(all, line) {
				all = append(all, line)
			}
		}
	}
	return all
}
