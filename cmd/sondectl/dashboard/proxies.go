package dashboard

import (
	"strings"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/status"
)

// Proxies are the Envoys and their agents.
type Proxies struct {
	Rows    []Proxy `json:"rows"`
	LeftOut uint32  `json:"leftOut,omitempty"`
}

// Proxy is one Envoy with its agent.
type Proxy struct {
	Mesh  string `json:"mesh"`
	Name  string `json:"name"`
	Level Level  `json:"level"`
	// Agent is the phase of its session, and Since when that began.
	Agent string     `json:"agent"`
	Since *time.Time `json:"since,omitempty"`
	// Envoy is whether it is connected. Synced of Types are acknowledged.
	Envoy  bool `json:"envoy"`
	Synced int  `json:"synced"`
	Types  int  `json:"types"`
	// Notes say what is wrong, in words, and why it drains.
	Notes       []string   `json:"notes,omitempty"`
	Nacks       []Nack     `json:"nacks,omitempty"`
	Certificate *time.Time `json:"certificate,omitempty"` // when it expires
	Version     string     `json:"version,omitempty"`
	EnvoyOf     string     `json:"envoyVersion,omitempty"`
}

// Nack is a resource that an Envoy refuses.
type Nack struct {
	Kind     string     `json:"kind"`
	Resource string     `json:"resource"`
	Reason   string     `json:"reason"`
	At       *time.Time `json:"at,omitempty"`
}

func proxiesOf(f *status.Facts, report *status.Report) *Proxies {
	problems := report.OfProxies()
	all := &Proxies{Rows: make([]Proxy, 0, len(f.Proxies)), LeftOut: f.LeftOut["proxies"]}
	for _, p := range f.Proxies {
		all.Rows = append(all.Rows, proxyOf(p, problems[mesh.MakeID(p.GetMesh(), p.GetName())]))
	}
	return all
}

func proxyOf(p *adminv1.Proxy, problems []status.Problem) Proxy {
	agent := p.GetAgent()
	row := Proxy{
		Mesh: p.GetMesh(), Name: p.GetName(), Level: Good, Agent: describe.Phase(p.GetAgentState()),
		Since: timeOf(p.GetAgentState().GetSince()), Envoy: len(p.GetStreams()) > 0,
		Certificate: timeOf(agent.GetCertificateExpires()), Version: agent.GetVersion(), EnvoyOf: agent.GetEnvoyVersion(),
	}
	for i := range problems {
		switch problems[i].Severity {
		case status.Critical, status.Error:
			row.Level = Bad
		case status.Warning:
			if row.Level != Bad {
				row.Level = Warn
			}
		case status.Note:
		}
		row.Notes = append(row.Notes, shorten(noteOf(&problems[i])))
	}
	if drain := p.GetDrain(); drain != "" {
		row.Notes = append(row.Notes, shorten(drain))
	}
	for _, stream := range p.GetStreams() {
		for _, t := range stream.GetTypes() {
			if row.Types++; t.GetSynced() {
				row.Synced++
			}
		}
	}
	for kind, nack := range describe.Nacks(p) {
		row.Nacks = append(row.Nacks, Nack{
			kind, shorten(nack.GetResource()), shorten(nack.GetReason()), timeOf(nack.GetAt()),
		})
	}
	return row
}

// noteOf says what a problem is, and of what unless that is the proxy.
func noteOf(p *status.Problem) string {
	if of := p.Objects[0]; !strings.HasPrefix(of, "dataplane/") {
		return of + ": " + p.What
	}
	return p.What
}
