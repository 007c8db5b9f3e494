package status

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/internal/podcause"
)

// agents reports problems with the sessions of agents.
func agents(v *picture) []Problem {
	var all []Problem
	for _, p := range v.Proxies {
		state := p.GetAgentState()
		add := func(s Severity, what string, notes ...string) {
			problem := v.ofDataplane(p.GetMesh(), p.GetName(), s, what, notes...)
			if state.GetPhase() != adminv1.AgentState_CONNECTED { // otherwise the time is the start of the session
				problem.Since = at(state.GetSince())
			}
			if strings.Contains(state.GetRefusal(), podcause.NotCounted) {
				problem.Do = AskPod(p.GetName())
			}
			all = append(all, problem)
		}
		switch phase := state.GetPhase(); {
		case !p.GetKnown():
			add(Error, "the Dataplane does not exist, but its proxy is connected", state.GetRefusal())
		case state.GetRefusal() != "":
			add(Error, "its agent cannot join", state.GetRefusal())
		case phase == adminv1.AgentState_LOST:
			add(Error, "its agent is lost, its endpoint remains")
		case phase == adminv1.AgentState_RECONNECTING:
			add(Warning, "its agent is disconnected, and may reconnect")
		case phase == adminv1.AgentState_STOPPED:
			add(Warning, "its agent has drained and stopped")
		case phase == adminv1.AgentState_NEVER_JOINED:
			add(Error, "its agent has never joined", "it was not started, or its token is expired or wrong: see its log")
		case p.GetAgent().GetUnresponsive():
			add(Error, "its agent is connected, but does not respond", "the agent or its connection hangs: no response within 2 s")
		case p.GetOtherWorkload() != "":
			add(Error, "its certificate is for another workload", p.GetOtherWorkload())
		}
	}
	return all
}

// envoys reports problems of the Envoys of connected agents.
func envoys(v *picture) []Problem {
	var all []Problem
	for _, p := range v.Proxies {
		add := func(s Severity, what string, since *timestamppb.Timestamp, notes ...string) {
			problem := v.ofDataplane(p.GetMesh(), p.GetName(), s, what, notes...)
			problem.Since = at(since)
			all = append(all, problem)
		}
		agent := p.GetAgent()
		switch {
		case p.GetAgentState().GetPhase() != adminv1.AgentState_CONNECTED, p.GetAgentState().GetRefusal() != "":
		case agent.GetEnvoyDown() != "":
			add(Error, "its Envoy does not run", nil, agent.GetEnvoyDown())
		case len(p.GetStreams()) == 0:
			add(Error, "its Envoy is not connected to the control plane", nil)
		}
		if refused, since := v.refusals(p); len(refused) > 0 {
			add(Error, "its Envoy rejects part of its configuration", since, refused...)
		}
		if refused := agent.GetRefused(); len(refused) > 0 {
			add(Warning, "its Envoy refuses calls that would succeed without Envoy", nil, refused...)
		}
		if skew := agent.GetVersionSkew(); skew != "" {
			add(Warning, "unsupported version of the agent", nil, skew)
		}
		if version := agent.GetEnvoyVersion(); version != "" && !mesh.SupportsEnvoy(version) {
			add(Warning, "unsupported version of Envoy: supported are "+mesh.SupportedEnvoys(), nil, "envoy "+version)
		}
	}
	return all
}

// refusals are the resources that an Envoy rejects, and since when. It omits listeners that inbounds or outbounds
// report.
func (v *picture) refusals(p *adminv1.Proxy) (notes []string, since *timestamppb.Timestamp) {
	for kind, nack := range describe.Nacks(p) {
		if v.refusesPort(p, nack.GetReason()) {
			continue
		}
		if note := describe.Nack(kind, nack); !slices.Contains(notes, note) {
			notes = append(notes, note)
		}
		if at := nack.GetAt(); at != nil && (since == nil || at.AsTime().Before(since.AsTime())) {
			since = at
		}
	}
	return notes, since
}

// refusesPort reports whether the NACK is about an inbound or an outbound of the proxy.
func (v *picture) refusesPort(p *adminv1.Proxy, reason string) bool {
	d := v.dataplanes[mesh.MakeID(p.GetMesh(), p.GetName())]
	if d == nil || reason == "" {
		return false
	}
	inbound := func(in *adminv1.InboundHealth) bool { return strings.Contains(in.GetReason(), reason) }
	outbound := func(o *adminv1.OutboundHealth) bool { return strings.Contains(o.GetReason(), reason) }
	return slices.ContainsFunc(d.GetInbounds(), inbound) || slices.ContainsFunc(d.GetOutbounds(), outbound)
}

// renewalLate is the remaining part of a certificate's validity at which the renewal is overdue: agents renew after two
// thirds.
const renewalLate = 4

// certificates reports proxies whose certificate has expired, or was not renewed in time.
func certificates(v *picture) []Problem {
	validity := map[string]time.Duration{}
	for _, m := range v.meshes {
		if b := m.spec.Backend(); b != nil {
			validity[m.spec.Name] = b.CertValidity()
		}
	}
	var all []Problem
	for _, p := range v.Proxies {
		expires := p.GetAgent().GetCertificateExpires()
		if expires == nil {
			continue
		}
		switch left := expires.AsTime().Sub(v.Now); {
		case left <= 0:
			problem := v.ofDataplane(p.GetMesh(), p.GetName(), Critical, "its certificate has expired")
			problem.Since = at(expires)
			all = append(all, problem)
		case left < validity[p.GetMesh()]/renewalLate:
			all = append(all, v.ofDataplane(p.GetMesh(), p.GetName(), Warning, "its certificate was not renewed in time",
				"it expires in "+printer.ShortDuration(left)))
		}
	}
	return all
}

// authorityLate is the remaining part of a CA's validity at which operators must rotate it.
const authorityLate = 10

// authorities reports CAs of meshes that have expired, or expire soon.
func authorities(v *picture) []Problem {
	var all []Problem
	for _, m := range v.meshes {
		expires := m.GetCaExpires()
		b := m.spec.Backend()
		if expires == nil || b == nil {
			continue
		}
		p := Problem{
			tier: ofMesh, Mesh: m.spec.Name, Objects: []string{"mesh/" + m.spec.Name},
			Do: "sondectl rotate ca --mesh " + m.spec.Name,
		}
		switch left := expires.AsTime().Sub(v.Now); {
		case left <= 0:
			p.Severity, p.What, p.Since = Critical, "its CA has expired", at(expires)
		case left < b.CAValidity()/authorityLate:
			p.Severity, p.What = Warning, "its CA is about to expire"
			p.Notes = []string{"it expires in " + printer.ShortDuration(left)}
		default:
			continue
		}
		all = append(all, p)
	}
	return all
}

// drains notes proxies that get no new traffic on purpose.
func drains(v *picture) []Problem {
	var all []Problem
	for _, p := range v.Proxies {
		if p.GetDraining() {
			problem := v.ofDataplane(p.GetMesh(), p.GetName(), Note, "it drains", p.GetDrain())
			problem.word = "draining"
			all = append(all, problem)
		}
	}
	return all
}

// restarts reports why guarded containers wait for a restart.
func restarts(v *picture) []Problem {
	if v.Restarts == nil {
		return nil
	}
	var all []Problem
	for _, r := range v.Restarts.GetRestarts() {
		p := Problem{
			tier: ofObjects, Severity: Error, Objects: []string{"pod/" + r.GetPod()}, Since: at(r.GetSince()), Notes: []string{r.GetWhy()},
			Do: fmt.Sprintf("sondectl restarts explain %s -n %s", r.GetPod(), r.GetNamespace()),
		}
		if r.GetFailure() != "" {
			p.Notes = append(p.Notes, "container "+r.GetContainer()+" fails: "+r.GetFailure())
		}
		switch r.GetState() {
		case adminv1.Restart_UNHELPFUL:
			p.What = "restarts of its workload have not helped"
			p.Do = fmt.Sprintf("sondectl restarts release %s, after you have fixed the cause", r.GetWorkload())
		case adminv1.Restart_WAITING:
			p.What = "its liveness probe fails, and the restart is withheld"
		case adminv1.Restart_GRANTED, adminv1.Restart_RESTARTING:
			p.Severity, p.What = Warning, "it restarts"
		default:
			continue
		}
		all = append(all, p)
	}
	if v.Restarts.GetGuarded() == 0 && len(all) == 0 {
		return nil // no container waits for the leader
	}
	round := v.Restarts.GetRound()
	for i, text := range describe.Round(round) {
		p := Problem{
			tier: ofMesh, Severity: Note, What: "restarts are not granted by Sonde", Notes: []string{text},
			Do: "sondectl restarts (docs/guarded-liveness.md)",
		}
		last := i == len(describe.Round(round))-1 // otherwise the mode is the reason
		switch namespace := round.GetBreakerNamespace(); {
		case round == nil || round.GetBreakerOpen() && last:
			p.Severity, p.What = Warning, "no restarts are granted"
		case namespace != "" && last:
			p.Severity, p.What = Warning, "no restarts are granted in namespace "+namespace
		}
		all = append(all, p)
	}
	return all
}
