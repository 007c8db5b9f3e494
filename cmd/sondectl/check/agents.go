package check

import (
	"fmt"
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// agents says which agents are of a version that the control plane does not support, and which have no session.
var agents = check{"agents", (*facts).needsAnswer, func(f *facts, l *lines) {
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
	l.warnOf(sorted(odd), "versions that the control plane does not support: an agent may be one minor version older",
		"kubectl rollout restart these workloads")
	l.warnOf(sorted(away), "without a session: their proxies get no changes and no certificates",
		"sondectl get proxies, and kubectl logs POD -c kuma-sidecar")
	if n := f.admin.is.leftOut; n > 0 {
		l.warn(fmt.Sprintf("%d proxies are not checked: the control plane names so many no more", n),
			"look at the metrics of the control plane (docs/metrics.md)")
	}
	l.ok(fmt.Sprintf("%d connected", connected))
}}

func proxyName(p *adminv1.Proxy) string { return p.GetMesh() + "/" + p.GetName() }

// servingCA says which proxies hold an old serving CA, and which could not follow its next rotation.
var servingCA = check{"serving CA", (*facts).needsAnswer, func(f *facts, l *lines) {
	var missed, cannot []string
	rotation := f.admin.is.rotation
	for _, w := range rotation.GetMissed() {
		missed = append(missed, w.GetMesh()+"/"+w.GetName())
	}
	for _, p := range f.admin.is.proxies {
		if p.GetAgent() != nil && !slices.Contains(p.GetAgent().GetFeatures(), agentv1.FeatureServingCA) {
			cannot = append(cannot, proxyName(p))
		}
	}
	l.failOf(sorted(missed), "pods hold an old one, and do not trust the control plane of now",
		"delete these pods, or give agents outside of the cluster the new serving-ca.crt")
	l.warnOf(sorted(cannot), "agents that cannot follow its next rotation",
		"restart these workloads before sondectl rotate serving-ca")
	if rotation.GetStep() > adminv1.Rotation_IDLE {
		l.warn("a rotation is in progress, and waits for "+printer.Plural(len(rotation.GetWaiting()), "agent"),
			"sondectl rotate serving-ca --status")
	}
	l.ok("no proxy holds an old one")
}}
