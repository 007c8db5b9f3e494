package check

import (
	"fmt"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// holdByWarning is the advice for kubelets that count errored probes as failures.
const holdByWarning = "helm upgrade with --set config.guardedLiveness.hold=warning: takes effect within two minutes, without restarting pods (docs/guarded-liveness.md)"

// guardedLiveness reports kubelets that have restarted containers whose failures were held back.
var guardedLiveness = check{"guarded liveness", (*facts).needsRound, func(f *facts, l *lines) {
	round := f.admin.is.round.is
	if round == nil {
		l.warn("no replica leads: no restart is granted, and restarts without a grant are not detected", "see sondectl get health")
		return
	}
	var notes []string
	for _, n := range round.GetUnheld() {
		notes = append(notes, fmt.Sprintf("%s: %s, the last one at %s: container %s of pod %s/%s",
			n.GetName(), printer.Plural(int(n.GetRestarts()), "restart"), n.GetLast().AsTime().Format(time.RFC3339), n.GetContainer(), n.GetNamespace(), n.GetPod()))
	}
	text := "kubelets have restarted containers whose failures were held back: no restart budget limits these restarts"
	if f.hold() == mesh.HoldWarning {
		l.failOf(notes, text+", although failures are held back as warnings", "see the events Killing and RestartUnheld in kubectl describe pod")
	} else {
		l.failOf(notes, text, holdByWarning)
	}
	l.ok("no container whose failure was held back has restarted without a grant since replica " + round.GetReplica() + " leads")
}}

// triedLiveness reports nodes whose kubelets count errored liveness probes as failures. Guarded liveness needs kubelets
// that discard them.
var triedLiveness = check{"errored probes", (*facts).needsTried, func(f *facts, l *lines) {
	good, counting, unknown := 0, []string(nil), map[string][]string{}
	for _, o := range f.tried.is.outcomes {
		switch {
		case o.liveness == discards:
			good++
		case o.liveness == counts:
			counting = append(counting, o.node)
		case o.problem != unpulled && o.problem != unstarted: // the line above reports this error
			unknown[o.livenessReason] = append(unknown[o.livenessReason], o.node)
		}
	}
	const text = "the kubelet counts errored liveness probes as failures"
	if len(counting) > 0 && f.hold() == mesh.HoldWarning {
		l.add(OK, fmt.Sprintf("%s on %s: guarded liveness holds failures back as warnings", text, printer.Plural(len(counting), "node")), "", sorted(counting)...)
	} else {
		l.failOf(sorted(counting), text+": guarded liveness does not limit restarts there", holdByWarning)
	}
	l.warnOf(nodesBy(unknown), "unknown on some nodes", "fix the errors below, and check again")
	if good > 0 {
		l.add(OK, fmt.Sprintf("the kubelets of %s discard errored liveness probes", printer.Plural(good, "node")), "")
	}
}}

// hold returns the setting of how failures are held back, "" if it is unknown.
func (f *facts) hold() mesh.LivenessHold {
	return mesh.LivenessHold(f.admin.is.round.is.GetHold())
}
