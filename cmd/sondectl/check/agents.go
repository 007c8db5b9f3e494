package check

import (
	"fmt"
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// agents says which agents are of a version that the control plane does not support, and which have no session.
func agents(f *facts) []Line {
	const name = "agents"
	if f.admin.err != nil {
		return nil // controlPlane says it
	}
	var odd, away []string
	connected := 0
	for _, p := range f.admin.is.proxies {
		if p.GetAgent() != nil {
			connected++
		}
		if problem := p.GetAgent().GetVersionSkew(); problem != "" {
			odd = append(odd, proxyName(p)+": "+problem)
		}
		switch s := p.GetAgentState(); s.GetPhase() {
		case adminv1.AgentState_LOST:
			away = append(away, fmt.Sprintf("%s: lost since %s", proxyName(p), stamp(s.GetSince().AsTime())))
		case adminv1.AgentState_WAITING:
			away = append(away, fmt.Sprintf("%s: may not join: %s", proxyName(p), s.GetRefusal()))
		default:
		}
	}
	var lines []Line
	if len(odd) > 0 {
		lines = append(lines, Line{
			Name: name, Level: Warn, Text: "versions that the control plane does not support: an agent may be one minor version older", Notes: sorted(odd), Do: "kubectl rollout restart these workloads",
		})
	}
	if len(away) > 0 {
		lines = append(lines, Line{Name: name, Level: Warn, Text: "without a session: their proxies get no changes and no certificates", Notes: sorted(away), Do: "sondectl get proxies, and kubectl logs POD -c kuma-sidecar"})
	}
	if n := f.admin.is.leftOut; n > 0 {
		lines = append(lines, Line{Name: name, Level: Warn, Text: fmt.Sprintf("%d proxies are not checked: the control plane names so many no more", n), Do: "look at the metrics of the control plane (docs/metrics.md)"})
	}
	if len(lines) > 0 {
		return lines
	}
	return []Line{{Name: name, Level: OK, Text: fmt.Sprintf("%d connected", connected)}}
}

func proxyName(p *adminv1.Proxy) string { return p.GetMesh() + "/" + p.GetName() }

// servingCA says which proxies hold an old serving CA, and which could not follow its next rotation.
func servingCA(f *facts) []Line {
	const name = "serving CA"
	if f.admin.err != nil {
		return nil // controlPlane says it
	}
	var missed, cannot []string
	for _, w := range f.admin.is.rotation.GetMissed() {
		missed = append(missed, w.GetMesh()+"/"+w.GetName())
	}
	for _, p := range f.admin.is.proxies {
		if p.GetAgent() != nil && !slices.Contains(p.GetAgent().GetFeatures(), agentv1.FeatureServingCA) {
			cannot = append(cannot, proxyName(p))
		}
	}
	var lines []Line
	if len(missed) > 0 {
		lines = append(lines, Line{
			Name: name, Level: Fail, Text: "pods hold an old one, and do not trust the control plane of now", Notes: sorted(missed),
			Do: "delete these pods, or give agents outside of the cluster the new serving-ca.crt",
		})
	}
	if len(cannot) > 0 {
		lines = append(lines, Line{
			Name: name, Level: Warn, Text: "agents that cannot follow its next rotation", Notes: sorted(cannot), Do: "restart these workloads before sondectl rotate serving-ca",
		})
	}
	if step := f.admin.is.rotation.GetStep(); step > adminv1.Rotation_IDLE {
		lines = append(lines, Line{
			Name: name, Level: Warn, Text: "a rotation is in progress, and waits for " + printer.Plural(len(f.admin.is.rotation.GetWaiting()), "agent"), Do: "sondectl rotate serving-ca --status",
		})
	}
	if len(lines) > 0 {
		return lines
	}
	return []Line{{Name: name, Level: OK, Text: "no proxy holds an old one"}}
}
