package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const proxyColumns = `AGENT         state of the agent's session with this replica of the control plane:
                connected
                reconnecting  the session has ended, or the control plane has started, within the last 30 seconds, and the agent is
                              not back yet
                lost          the session has ended, and the agent is not back. The endpoint stays
                stopped       the agent has drained and ended
                never-joined  the proxy has never had a certificate, so its endpoints are not ready
                waiting       the agent asks to join and cannot, for the reason on a line of its own
SINCE         for how long. Of lost and stopped agents: since the end of their session, or if that was before the start of the
              control plane, since that
ADS           how long Envoy has been connected to this replica of the control plane; "waiting" while its Dataplane is not
              known
VERSION       of the agent; a line of its own says it where the control plane does not support that one
ENVOY         version of Envoy; a line of its own says it where that is not supported, and where Envoy does not run, with the reason
SYNCED        types of resources that Envoy has taken all of, and types that it asked for
DRAINING      yes if it ends or should get no new traffic; a line of its own says why, and whether it serves on. A stopped one has ended
CERT-EXPIRES  when the certificate of the proxy ends
NACK          resources that Envoy refuses, each with the reason on a line of its own; it keeps what it had before

-o wide adds:
XDS       delta or sotw (state of the world), the protocol of its stream
SERIAL    of the certificate in use
BUNDLE    of CAs in use
FEATURES  of the agent`

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
	if drain := p.GetDrain(); drain != "" {
		notes = append(notes, "drain: "+drain)
	}
	agent := p.GetAgent()
	if v := agent.GetEnvoyVersion(); v != "" && !mesh.SupportsEnvoy(v) {
		notes = append(notes, fmt.Sprintf("unsupported: envoy %s: supported are %s", v, mesh.SupportedEnvoys()))
	}
	cells := []string{
		p.GetMesh(), p.GetName(), describe.Phase(p.GetAgentState()), describe.Since(p.GetAgentState().GetSince()), connected(p), agent.GetVersion(), agent.GetEnvoyVersion(), sync, draining,
		describe.Until(agent.GetCertificateExpires()), nacks,
	}
	return printer.Row{Notes: notes, Cells: cells, Wide: cells, More: []string{protocol, agent.GetLeafSerial(), agent.GetBundleId(), replicasOf(p), strings.Join(agent.GetFeatures(), ",")}}
}

// agentNotes says why the agent cannot join, how its certificate differs from the Dataplane, why its Envoy does not run, and whether its version is
// supported.
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
	}
	if differs := p.GetAgent().GetVersionSkew(); differs != "" {
		notes = append(notes, "unsupported: "+differs)
	}
	return notes
}

// replicasOf names the replicas of the control plane that have the agent's session and the ADS streams.
func replicasOf(p *adminv1.Proxy) string {
	names := []string{p.GetAgent().GetReplica()}
	for _, stream := range p.GetStreams() {
		names = append(names, stream.GetReplica())
	}
	slices.Sort(names)
	return strings.Join(slices.DeleteFunc(slices.Compact(names), func(name string) bool { return name == "" }), ",")
}

// connected returns how long the proxy's oldest stream has been open, "waiting" if the proxy is unknown, "no" if there is
// no stream.
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
