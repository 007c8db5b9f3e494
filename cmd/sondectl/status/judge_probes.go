package status

import (
	"iter"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// failingProbes yields the failing probes of a proxy, none if its agent hangs: its verdicts may be old.
func failingProbes(p *adminv1.Proxy) iter.Seq[describe.Probe] {
	if p.GetAgent().GetUnresponsive() {
		return func(func(describe.Probe) bool) {}
	}
	return describe.FailingProbes(p)
}

// failingProbe returns the first probe of a pod that keeps it from being Ready, nil without one. The health of an
// inbound has the reason of a serviceProbe.
func (v *picture) failingProbe(id mesh.ID) *describe.Probe {
	for p := range failingProbes(v.proxies[id]) {
		if p.Container != "" && p.Probe != string(mesh.ProbeLiveness) {
			return &p
		}
	}
	return nil
}

// containerOf is a container of a pod, by its Dataplane.
type containerOf struct{ dataplane, container string }

// probes reports liveness probes that fail, after which the kubelet restarts the container. inbounds and services
// report other probes, and restarts reports failures that are withheld.
func probes(v *picture) []Problem {
	var all []Problem
	restarting := restartsOf(v.Restarts)
	for _, p := range v.Proxies {
		for probe := range failingProbes(p) {
			if probe.Probe != string(mesh.ProbeLiveness) || probe.Verdict != describe.VerdictFailure ||
				restarting[containerOf{p.GetName(), probe.Container}] {
				continue
			}
			problem := v.ofDataplane(p.GetMesh(), p.GetName(), Warning, "its liveness probe fails",
				probe.Title()+" "+probe.Clause())
			problem.Since = probe.Since
			all = append(all, problem)
		}
	}
	return all
}

// restartsOf returns the guarded containers that wait for a restart, or restart.
func restartsOf(list *adminv1.ListRestartsResponse) map[containerOf]bool {
	all := make(map[containerOf]bool, len(list.GetRestarts()))
	for _, r := range list.GetRestarts() {
		all[containerOf{mesh.ObjectDataplane(r.GetNamespace(), r.GetPod()), r.GetContainer()}] = true
	}
	return all
}
