package dashboard

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// Reasons for unreported probes.
const (
	disconnected = "its agent is not connected"
	hangs        = "its agent is connected, but does not respond"
	tooOld       = "its agent is too old to report probes"
	notYet       = "the control plane has no report of its probes"
	notListed    = "more probes than the control plane lists"
	notChecked   = "it has not been checked since the agent started"
	notAsked     = "the kubelet does not check it: its container may not be running"
	ofLater      = "its verdict is from a later version of the agent"
)

// statesOf are the verdicts of agents.
var statesOf = map[string]State{
	describe.VerdictSuccess: Passing, describe.VerdictWarning: Warned, describe.VerdictFailure: Failing,
	describe.VerdictErrored: Errored, describe.VerdictHeld: Held,
}

// unreported returns the reason for unreported probes of a pod, "" if its agent reports them.
func unreported(p *adminv1.Proxy) string {
	switch {
	case p.GetAgentState().GetPhase() != adminv1.AgentState_CONNECTED:
		return cmp.Or(describe.Connection(p), disconnected)
	case p.GetAgent().GetUnresponsive():
		return hangs
	case p.GetVerdicts() != nil:
		return ""
	case !slices.Contains(p.GetAgent().GetFeatures(), agentv1.FeatureVerdicts):
		return tooOld
	}
	return notYet
}

// addPod adds the state of a pod's probes: the verdicts that its agent reports, guarded containers that wait or
// restart, and whether its endpoints say that it is Ready. hidden is why restarts are unknown.
func (w *Workload) addPod(
	d *status.Dataplane, p *adminv1.Proxy, endpoints []*adminv1.Endpoint, restarts []*adminv1.Restart, hidden string,
) {
	namespace, pod, _ := mesh.ObjectOf(d.Spec.Name)
	why := status.AskPod(d.Spec.Name)
	probes, missing := describe.Probes(p.GetVerdicts()), unreported(p)
	if missing != "" {
		probes = nil
	}
	w.addRestarts(namespace, pod, restarts, probes)
	lies := w.addUnfailing(d, pod, why)
	kubelet := ofPod(d, endpoints, pod, why)
	if missing != "" {
		w.Startup.miss(pod, missing)
		if len(restarts) == 0 {
			w.Liveness.miss(pod, cmp.Or(hidden, missing))
		}
		w.Readiness.add(kubelet)
		return
	}
	cells := w.cells()
	ready := lies
	for i := range probes {
		probe := &probes[i]
		cell := cells[probe.Probe]
		restarts := slices.ContainsFunc(restarts, func(r *adminv1.Restart) bool {
			return r.GetContainer() == probe.Container
		})
		if cell == nil || cell == w.Liveness && restarts {
			continue
		}
		ready = ready || cell == w.Readiness
		f := Finding{Instance: pod, Container: probe.Container, Do: why}
		f.setProbe(probe)
		cell.add(f)
	}
	if !ready || kubelet.State == Failing {
		w.Readiness.add(kubelet)
	}
	if p.GetVerdicts().GetLeftOut() > 0 {
		for _, cell := range cells {
			cell.miss(pod, notListed)
		}
	}
}

// addUnfailing adds the probes of a pod that cannot fail. It reports whether one of them is a readiness probe.
func (w *Workload) addUnfailing(d *status.Dataplane, pod, why string) (readiness bool) {
	state := d.GetPodState()
	for _, p := range state.GetUnfailing() {
		cell := w.cells()[p.GetProbe()]
		if cell == nil {
			continue
		}
		readiness = readiness || cell == w.Readiness
		cell.add(Finding{
			Instance: pod, Container: p.GetContainer(), State: CannotFail, Probe: fmt.Sprintf("tcpSocket :%d", p.GetPort()),
			Asks: "nothing: Envoy answers", Since: timeOf(state.GetCreated()), Reason: p.GetReason(), Do: why,
		})
	}
	return readiness
}

// cells are the cells of a workload by the type of probe.
func (w *Workload) cells() map[string]*Cell {
	return map[string]*Cell{
		string(mesh.ProbeStartup): w.Startup, string(mesh.ProbeLiveness): w.Liveness,
		string(mesh.ProbeReadiness): w.Readiness,
	}
}

// addRestarts adds the guarded containers of a pod that wait or restart, with the changes of their probes.
func (w *Workload) addRestarts(namespace, pod string, restarts []*adminv1.Restart, probes []describe.Probe) {
	for _, r := range restarts {
		f := Finding{
			Instance: pod, Container: r.GetContainer(), Do: fmt.Sprintf("sondectl restarts explain %s -n %s", pod, namespace),
		}
		for i := range probes {
			if probes[i].Container == r.GetContainer() && probes[i].Probe == string(mesh.ProbeLiveness) {
				f.setProbe(&probes[i])
			}
		}
		f.Since, f.AtLeast, f.Reason = timeOf(r.GetSince()), false, strings.Join(nonEmpty(r.GetWhy(), r.GetFailure()), ": ")
		f.State = Held
		if s := r.GetState(); s == adminv1.Restart_GRANTED || s == adminv1.Restart_RESTARTING {
			f.State = Restarting
		}
		w.Liveness.add(f)
	}
}

// setProbe sets state, reason and changes from an agent's report.
func (f *Finding) setProbe(p *describe.Probe) {
	f.Since, f.AtLeast, f.Reason = p.Since, p.AtLeast, p.Reason
	f.State = stateOf(p.Verdict)
	switch {
	case p.Verdict == "":
		f.Reason = notChecked
	case p.Verdict == describe.VerdictNotAsked:
		f.Reason = notAsked
	case f.State == Unreported:
		f.Reason = ofLater
	}
	f.Earlier = max(0, int(p.Total)-len(p.Changes))
	for _, c := range p.Changes {
		f.Changes = append(f.Changes, Change{c.At, stateOf(c.Verdict)})
	}
}

// stateOf returns the state of a verdict. What is unknown is not reported.
func stateOf(verdict string) State { return cmp.Or(statesOf[verdict], Unreported) }

// setVerdicts sets when the state of an inbound began, and its changes, from the agent's report, if there is one.
func (f *Finding) setVerdicts(p *adminv1.Proxy, inbound string) {
	probes := describe.Probes(p.GetVerdicts())
	if i := slices.IndexFunc(probes, func(p describe.Probe) bool { return p.Inbound == inbound }); i >= 0 &&
		probes[i].Since != nil {
		f.setProbe(&probes[i])
	}
}

func nonEmpty(texts ...string) []string {
	return slices.DeleteFunc(texts, func(t string) bool { return t == "" })
}
