package migrate

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// admission is what the webhook makes of the new pods of a workload.
type admission struct {
	// template is that of the workload. One that was injected by hand is as if it had not been, unless unreadable says why not.
	template   *corev1.Pod
	unreadable error
	// selection says whether Sonde injects them, known whether that is known, and misselected why they are refused for it.
	selection   webhook.Selection
	known       bool
	misselected error
	// to is the mode that is asked for, and toBy what asks, "" for the default. The rest is as if they were selected.
	to   mesh.ProbesMode
	toBy string
	// pod is a new one; refused is why there is none.
	pod     *corev1.Pod
	refused error
	// decisions are about the probes of template, port is the virtual one, and warnings are those of the webhook.
	decisions []webhook.Decision
	port      int32
	warnings  []string
}

// admit asks the webhook about the new pods of a workload. o.ProbesMode is the mode of those that ask for none.
func (c *Cluster) admit(w *workload, o webhook.Options) *admission {
	a := &admission{}
	a.template, _, a.unreadable = restore(w.template, sidecarOf(w.template))
	a.selection, a.known, a.misselected = c.selected(w, a.template, o)
	if a.to, a.toBy, a.refused = c.asked(w, o.ProbesMode); a.refused != nil {
		return a
	}
	o.ProbesMode = a.to
	decisions, port, err := webhook.Explain(a.template, o)
	if err != nil {
		a.refused = err
		return a
	}
	a.decisions, a.port = decisions, port
	a.pod, a.warnings, a.refused = webhook.Inject(a.template, o)
	return a
}

// unselected reports whether it is known that Sonde does not inject new pods.
func (a *admission) unselected() bool {
	return a.misselected == nil && a.known && !a.selection.Injected
}

// clashes returns why new pods are refused if Sonde injects them, one entry for each line.
func (a *admission) clashes() []string { return linesOf(a.unreadable, a.misselected, a.refused) }

// problem returns why new pods are refused, "" if they are not. Where no label asks for Sonde it refuses none; without the namespace,
// pods that it has injected tell that one does.
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
