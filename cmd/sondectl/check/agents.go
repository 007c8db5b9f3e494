package check

import (
	"fmt"
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

// agents reports agents with an unsupported version, and agents without a session.
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
			away = append(away, fmt.Sprintf("%s: cannot join: %s", proxyName(p), s.GetRefusal()))
		default:
		}
	}
	l.warnOf(sorted(odd), "agents with unsupported versions: an agent may be at most one minor version older than the control plane",
		"restart these workloads with kubectl rollout restart")
	l.warnOf(sorted(away), "agents without a session: their proxies get no changes and no certificates",
		"see sondectl get proxies and kubectl logs POD -c kuma-sidecar")
	if n := f.admin.is.leftOut; n > 0 {
		l.warn(fmt.Sprintf("%d proxies are not checked: the control plane omits them from its list", n),
			"see the metrics of the control plane (docs/metrics.md)")
	}
	l.ok(fmt.Sprintf("%d connected", connected))
}}

func proxyName(p *adminv1.Proxy) string { return p.GetMesh() + "/" + p.GetName() }

// servingCA reports proxies that trust only an old serving CA, and agents that do not support its rotation.
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
	l.failOf(sorted(missed), "pods with an old CA do not trust the current control plane",
		"delete these pods, or give agents outside of the cluster the new serving-ca.crt")
	l.warnOf(sorted(cannot), "agents that do not support a rotation",
		"restart these workloads before sondectl rotate serving-ca")
	if rotation.GetStep() > adminv1.Rotation_IDLE {
		l.warn("a rotation is in progress and waits for "+printer.Plural(len(rotation.GetWaiting()), "agent"),
			"sondectl rotate serving-ca --status")
	}
	l.ok("no proxy has an old CA")
}}
