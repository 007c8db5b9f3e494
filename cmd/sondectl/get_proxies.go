package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const proxyColumns = `AGENT         state of the agent's session with this replica of the control plane:
                connected
                reconnecting  the session has ended, or the control plane has started, within the last 30 seconds, and
                              the agent has not reconnected yet
                lost          the session has ended, and the agent has not reconnected. The endpoint remains
                stopped       the agent has drained and stopped
                never-joined  the proxy has never had a certificate, so its endpoints are not ready
                waiting       the agent tries to join but cannot, for the reason on a separate line
SINCE         for how long. For lost and stopped agents: since the end of their session, or since the start of the
              control plane if that was later
SYNCED        types of resources that Envoy has completely accepted / types that it has subscribed to
VERSION       of the agent, if not all have the same, and with --watch

Separate lines say why an agent cannot join, whether Envoy is disconnected or does not run, which resources Envoy
rejects and why (it keeps the previous version), which version is not supported, why a proxy drains and whether it
keeps serving, and which of its probes fail, and since when. -o json has the latest changes of all probes.

-o wide always has VERSION, and adds:
ADS           how long Envoy has been connected to this replica of the control plane; "waiting" while its Dataplane
              is unknown
ENVOY         version of Envoy
DRAINING      yes if the proxy is stopping or should get no new traffic; stopped if it has stopped
CERT-EXPIRES  when the certificate of the proxy expires
NACK          number of resources that Envoy rejects
XDS           delta or sotw (state of the world), the protocol of its stream
SERIAL        serial number of the certificate in use
BUNDLE        bundle of CAs in use
REPLICAS      replicas of the control plane to which agent and Envoy are connected
FEATURES      features of the agent`

// comparedProxies returns what the table shows of proxies: of their probes only the failing ones. Their times are ages,
// which the replicas of the control plane may report a second apart.
func comparedProxies(all []*adminv1.Proxy) []any {
	compared := make([]any, len(all))
	for i, p := range all {
		of := proto.CloneOf(p)
		of.Verdicts = nil
		var failing []string
		for probe := range describe.FailingProbes(p) {
			failing = append(failing, fmt.Sprintf("%s %d %s", probe.Title(), probe.Total, probe.Clause()))
		}
		compared[i] = []any{printer.Message{Message: of}, failing}
	}
	return compared
}

func proxyRow(p *adminv1.Proxy) printer.Row {
	types, synced, refused, protocol := 0, 0, 0, ""
	notes := agentNotes(p)
	for _, stream := range p.GetStreams() {
		protocol = "sotw"
		if stream.GetDelta() {
			protocol = "delta"
		}
		for _, t := range stream.GetTypes() {
			if types++; t.GetSynced() {
				synced++
			}
			for _, nack := range t.GetNacks() {
				refused++
				notes = append(notes, describe.Nack(t.GetKind(), nack))
			}
		}
	}
	sync, nacks := "", ""
	if types > 0 {
		sync = fmt.Sprintf("%d/%d", synced, types)
	}
	if refused > 0 {
		nacks = strconv.Itoa(refused)
	}
	draining := "no"
	if p.GetDraining() {
		draining = "yes"
	}
	switch drain := p.GetDrain(); {
	case drain != "":
		notes = append(notes, "drain: "+drain)
	case p.GetDraining() && p.GetAgentState().GetPhase() != adminv1.AgentState_STOPPED:
		notes = append(notes, describe.DrainReported)
	}
	for probe := range describe.FailingProbes(p) {
		notes = append(notes, probe.Text(time.Now()))
	}
	agent := p.GetAgent()
	if v := agent.GetEnvoyVersion(); v != "" && !mesh.SupportsEnvoy(v) {
		notes = append(notes, fmt.Sprintf("unsupported: envoy %s: supported are %s", v, mesh.SupportedEnvoys()))
	}
	cells := []string{
		p.GetMesh(), p.GetName(), describe.Phase(p.GetAgentState()), describe.Since(p.GetAgentState().GetSince()), sync,
		agent.GetVersion(),
	}
	return printer.Row{Notes: notes, Cells: cells, Wide: cells, More: []string{
		connected(p), agent.GetEnvoyVersion(), draining, describe.Until(agent.GetCertificateExpires()), nacks, protocol,
		agent.GetLeafSerial(), agent.GetBundleId(), replicasOf(p), strings.Join(agent.GetFeatures(), ","),
	}}
}

// agentNotes lists problems of an agent: it cannot join, its certificate differs from the Dataplane, its version is
// unsupported, or its Envoy does not run, is not connected or rejects calls.
func agentNotes(p *adminv1.Proxy) []string {
	var notes []string
	if differs := p.GetOtherWorkload(); differs != "" {
		notes = append(notes, "not ready: "+differs)
	}
	if refusal := p.GetAgentState().GetRefusal(); refusal != "" {
		notes = append(notes, "cannot join: "+refusal)
	}
	if down := p.GetAgent().GetEnvoyDown(); down != "" {
		notes = append(notes, "envoy does not run: "+down)
	} else if p.GetAgentState().GetPhase() == adminv1.AgentState_CONNECTED && len(p.GetStreams()) == 0 {
		notes = append(notes, "envoy is not connected: no replica of the control plane has its ADS stream")
	}
	for _, refused := range p.GetAgent().GetRefused() {
		notes = append(notes, "envoy rejects calls: "+refused)
	}
	if differs := p.GetAgent().GetVersionSkew(); differs != "" {
		notes = append(notes, "unsupported: "+differs)
	}
	return notes
}

// replicasOf names the replicas of the control plane with the agent's session and the ADS streams.
func replicasOf(p *adminv1.Proxy) string {
	names := []string{p.GetAgent().GetReplica()}
	for _, stream := range p.GetStreams() {
		names = append(names, stream.GetReplica())
	}
	slices.Sort(names)
	return strings.Join(slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" }), ",")
}

// connected returns how long the proxy's oldest stream has been open, "waiting" if the proxy is unknown, "no" without a
// stream.
func connected(p *adminv1.Proxy) string {
	switch streams := p.GetStreams(); {
	case len(streams) == 0:
		return "no"
	case !p.GetKnown():
		return "waiting"
	default:
		return printer.ShortDuration(time.Since(streams[0].GetConnectedSince().AsTime()))
	}
}
