package main

import (
	"context"
	"fmt"
	"strconv"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

const proxyColumns = `CONNECTED     how long Envoy has been connected to this replica of the control plane; "waiting" while its Dataplane is not
              known
AGENT, ENVOY  their versions; a line of its own says it where that of Envoy is not supported
SYNCED        types of resources that Envoy has taken all of, and types that it asked for
CERT-EXPIRES  when the certificate of the proxy ends
NACK          resources that Envoy refuses, each with the reason on a line of its own; it keeps what it had before`

func listProxies(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*listing, error) {
	response, err := api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	l := &listing{
		header: []string{"MESH", "NAME", "CONNECTED", "AGENT", "ENVOY", "SYNCED", "DRAINING", "CERT-EXPIRES", "NACK"},
		tail:   response.GetTail(),
	}
	for _, entry := range response.GetProxies() {
		document, err := messageJSON(entry)
		if err != nil {
			return nil, err
		}
		l.documents = append(l.documents, document)
		l.rows = append(l.rows, proxyRow(entry))
	}
	return l, nil
}

func proxyRow(p *adminv1.Proxy) row {
	types, synced := 0, 0
	var notes []string
	for _, stream := range p.GetStreams() {
		for _, t := range stream.GetTypes() {
			if types++; t.GetSynced() {
				synced++
			}
			for _, nack := range t.GetNacks() {
				notes = append(notes, nackNote(t.GetKind(), nack))
			}
		}
	}
	sync, nacks := "", ""
	if types > 0 {
		sync = fmt.Sprintf("%d/%d", synced, types)
	}
	if len(notes) > 0 {
		nacks = strconv.Itoa(len(notes))
	}
	draining := "no"
	if p.GetDraining() {
		draining = "yes"
	}
	agent := p.GetAgent()
	if v := agent.GetEnvoyVersion(); v != "" && !mesh.SupportsEnvoy(v) {
		notes = append(notes, fmt.Sprintf("unsupported: envoy %s: supported are %s", v, mesh.SupportedEnvoys()))
	}
	return row{notes: notes, cells: []string{
		p.GetMesh(), p.GetName(), connected(p), agent.GetVersion(), agent.GetEnvoyVersion(), sync, draining,
		timeUntil(agent.GetCertificateExpires()), nacks,
	}}
}

func nackNote(kind string, nack *adminv1.Nack) string {
	resource := nack.GetResource()
	if resource == "" {
		resource = "(Envoy does not say which)"
	}
	return fmt.Sprintf("refused: %s %s: %s", kind, resource, nack.GetReason())
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
		return shortDuration(time.Since(streams[0].GetConnectedSince().AsTime()))
	}
}
