package status

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
)

// services reports services without any endpoint that gets traffic, and their callers.
func services(v *picture) []Problem {
	var all []Problem
	for _, s := range v.Services {
		all = append(all, v.frozen(s)...)
		if slices.ContainsFunc(s.GetEndpoints(), describe.Serves) {
			all = append(all, v.bare(s)...)
			continue
		}
		callers := v.callers[mesh.MakeID(s.GetMesh(), s.GetName())]
		p := Problem{
			tier: ofObjects, Severity: Error, Mesh: s.GetMesh(), Objects: []string{"service/" + s.GetName()}, Do: v.ask("service", s.GetMesh(), s.GetName()), affected: len(callers),
		}
		switch n := len(s.GetEndpoints()); {
		case n > 0:
			p.What = fmt.Sprintf("none of its %d endpoints is ready", n)
			if n == 1 {
				p.What = "its endpoint is not ready"
			}
			p.Notes = v.endpointNotes(s)
			for _, e := range s.GetEndpoints() {
				p.proxies = append(p.proxies, mesh.MakeID(s.GetMesh(), e.GetDataplane()))
			}
		default:
			p.What, p.Notes = "it has no endpoint", s.GetReasons()[:min(len(s.GetReasons()), 1)]
		}
		p.Since = at(s.GetWithoutSince())
		switch {
		case len(callers) > 0:
			p.Severity = Critical
			p.Notes = append(p.Notes, "calls fail from dataplane "+few(callers))
		case len(s.GetEndpoints()) == 0: // no known callers: for example a Deployment with 0 replicas
			p.Severity, p.word = Note, "without endpoints"
		}
		all = append(all, p)
	}
	return all
}

// maxEndpointNotes limits the endpoints of a service in notes.
const maxEndpointNotes = 3

// endpointNotes returns the reasons why endpoints are not ready, each once.
func (v *picture) endpointNotes(s *adminv1.Service) []string {
	byReason := map[string][]string{}
	var reasons []string
	for _, e := range s.GetEndpoints() {
		reason := e.GetReason()
		if reason == "" {
			reason = describe.Health(e.GetHealth())
		}
		if probe := v.failingProbe(mesh.MakeID(s.GetMesh(), e.GetDataplane())); probe != nil {
			reason += ": " + probe.Title() + " " + probe.Clause()
		}
		if byReason[reason] == nil {
			reasons = append(reasons, reason)
		}
		who := e.GetDataplane()
		if who == "" {
			who = e.GetAddress()
		}
		byReason[reason] = append(byReason[reason], who)
	}
	var notes []string
	for _, reason := range reasons[:min(len(reasons), maxEndpointNotes)] {
		notes = append(notes, few(byReason[reason])+": "+reason)
	}
	if n := len(reasons) - maxEndpointNotes; n > 0 {
		notes = append(notes, fmt.Sprintf("%d more reasons", n))
	}
	return notes
}

// bare reports endpoints without a sidecar of a service that also has ready ones. inbounds reports endpoints with a
// sidecar.
func (v *picture) bare(s *adminv1.Service) []Problem {
	var all []Problem
	for _, e := range s.GetEndpoints() {
		if e.GetDataplane() == "" && e.GetHealth() == adminv1.Endpoint_NOT_READY {
			all = append(all, Problem{
				tier: ofObjects, Severity: Warning, Mesh: s.GetMesh(), Objects: []string{"endpoint/" + e.GetAddress()},
				What: "not ready, and without a sidecar", Notes: []string{"service " + s.GetName() + ": " + e.GetReason()},
				Do: v.ask("service", s.GetMesh(), s.GetName()),
			})
		}
	}
	return all
}

// frozen reports endpoints that remain although Kubernetes removes them, which may be ready. Only Service objects have
// them, so no inbound shows it.
func (v *picture) frozen(s *adminv1.Service) []Problem {
	const what = "frozen: its endpoint remains although Kubernetes removes it"
	var all []Problem
	for _, e := range s.GetEndpoints() {
		if !strings.HasPrefix(e.GetReason(), mesh.FrozenReason) {
			continue
		}
		note := fmt.Sprintf("%s (%s): %s", e.GetAddress(), s.GetName(), e.GetReason())
		p := v.ofDataplane(s.GetMesh(), e.GetDataplane(), Warning, what, note)
		if e.GetDataplane() == "" {
			p.Objects, p.proxies = []string{"endpoint/" + e.GetAddress()}, nil
		}
		p.Do = "docs/freeze.md, and sondectl thaw --zone ZONE once the nodes are reachable"
		all = append(all, p)
	}
	return all
}

// unchecked notes services with endpoints whose application nothing checks.
func unchecked(v *picture) []Problem {
	var all []Problem
	for _, s := range v.Services {
		if slices.ContainsFunc(s.GetEndpoints(), (*adminv1.Endpoint).GetUnchecked) {
			all = append(all, Problem{
				tier: ofObjects, Severity: Note, Mesh: s.GetMesh(), Objects: []string{"service/" + s.GetName()}, What: "nothing checks its applications: they have no serviceProbe", word: "unchecked", Do: "docs/guides/universal-health.md",
			})
		}
	}
	return all
}

// without returns services of which no endpoint gets traffic.
func (v *picture) without() map[mesh.ID]bool {
	all := map[mesh.ID]bool{}
	for _, s := range v.Services {
		if !slices.ContainsFunc(s.GetEndpoints(), describe.Serves) {
			all[mesh.MakeID(s.GetMesh(), s.GetName())] = true
		}
	}
	return all
}

// inbounds reports inbounds of Dataplanes that get no traffic, and why. agents reports problems of the agent.
func inbounds(v *picture) []Problem {
	told := v.without()
	var all []Problem
	for _, d := range v.Dataplanes {
		proxy := v.proxies[d.Spec.ID()]
		for i, in := range d.GetInbounds() {
			reason := in.GetReason()
			switch {
			case reason == "" || in.GetHealth() == adminv1.Endpoint_READY:
				continue
			case proxy.GetAgentState().GetPhase() == adminv1.AgentState_NEVER_JOINED || proxy.GetOtherWorkload() != "":
				continue // agents reports this problem
			case len(in.GetServices()) > 0 &&
				!slices.ContainsFunc(in.GetServices(), func(name string) bool { return !told[mesh.MakeID(d.Spec.Mesh, name)] }):
				continue // services reports this problem
			}
			address := ""
			if i < len(d.Spec.Spec.Networking.Inbound) {
				address = mesh.JoinHostPort(d.Spec.Spec.Networking.Inbound[i].Address, d.Spec.Spec.Networking.Inbound[i].Port)
			}
			p := v.ofDataplane(d.Spec.Mesh, d.Spec.Name, Error, inboundWhat(in),
				fmt.Sprintf("%s (%s): %s", address, strings.Join(in.GetServices(), ","), reason))
			p.Since = at(in.GetSince())
			if probe := v.failingProbe(d.Spec.ID()); probe != nil {
				p.Notes = append(p.Notes, probe.Title()+" "+probe.Clause())
				p.Since = cmp.Or(p.Since, probe.Since)
			}
			if in.GetHealth() == adminv1.Endpoint_DRAINING {
				p.Severity = Warning
			}
			all = append(all, p)
		}
	}
	return all
}

// inboundWhat returns the health of an inbound and the part of its reason before the first colon.
func inboundWhat(in *adminv1.InboundHealth) string {
	kind, _, _ := strings.Cut(in.GetReason(), ": ")
	return describe.HealthText(in.GetHealth()) + ": " + kind
}

// outbounds reports outbounds at which Envoy does not listen.
func outbounds(v *picture) []Problem {
	var all []Problem
	for _, d := range v.Dataplanes {
		if d.GetStopped() || v.proxies[d.Spec.ID()].GetAgentState().GetPhase() == adminv1.AgentState_NEVER_JOINED {
			continue
		}
		for _, o := range d.GetOutbounds() {
			if o.GetHealth() == adminv1.Endpoint_NOT_READY {
				p := v.ofDataplane(d.Spec.Mesh, d.Spec.Name, Critical, "outbound not ready: calls fail, or reach another program", describe.Outbound(o)+": "+o.GetReason())
				p.Since = at(o.GetSince())
				all = append(all, p)
			}
		}
	}
	return all
}
