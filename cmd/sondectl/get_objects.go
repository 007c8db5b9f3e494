package main

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const meshColumns = `MTLS        on where proxies speak mTLS
MODE        STRICT takes mTLS alone, PERMISSIVE plain text too
BACKEND     the certificate authority in use
CA-EXPIRES  when its certificate ends
PROXIES     connected/all
SERVICES    how many there are

-o wide adds:
CERT-VALIDITY  of the certificates of proxies
PASSTHROUGH    on where redirected applications may call destinations outside the mesh
LABELS         of the object`

type meshStatus struct {
	CAExpires *time.Time `json:"caExpires,omitempty"`
	Proxies   uint32     `json:"proxies"`
	Connected uint32     `json:"connected"`
	Services  uint32     `json:"services"`
}

func listMeshes(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*listing, error) {
	response, err := api.ListMeshes(ctx, &adminv1.ListMeshesRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	l := &listing{
		header: []string{"NAME", "MTLS", "MODE", "BACKEND", "CA-EXPIRES", "PROXIES", "SERVICES"},
		more:   []string{"CERT-VALIDITY", "PASSTHROUGH", "LABELS"}, tail: response.GetTail(),
	}
	for _, entry := range response.GetMeshes() {
		status := meshStatus{Proxies: entry.GetProxies(), Connected: entry.GetConnected(), Services: entry.GetServices()}
		if t := entry.GetCaExpires(); t != nil {
			expires := t.AsTime()
			status.CAExpires = &expires
		}
		var m mesh.Mesh
		o, err := newObject(mesh.KindMesh, entry.GetObject(), &m, status)
		if err != nil {
			return nil, err
		}
		mtls, mode, backend, validity, passthrough := "off", "", "", "", "off"
		if b := m.Backend(); b != nil {
			mtls, mode, backend, validity = "on", string(b.Mode), b.Name, mesh.Duration(b.CertValidity()).String()
		}
		if m.Passthrough() {
			passthrough = "on"
		}
		l.documents = append(l.documents, o)
		cells := []string{
			m.Name, mtls, mode, backend, timeUntil(entry.GetCaExpires()),
			fmt.Sprintf("%d/%d", status.Connected, status.Proxies), strconv.Itoa(int(status.Services)),
		}
		l.rows = append(l.rows, printer.Row{Cells: cells, Wide: cells, More: []string{validity, passthrough, labelText(m.Labels)}})
	}
	return l, nil
}

const dataplaneColumns = `SERVICES  service:port/protocol of each inbound: the service of its tag, else those of MeshServices and Services, else the inbound's name
HEALTH    of the inbounds: ready, not ready, or how many are; draining if the proxy ends or should get no new traffic, as while a
          guarded liveness probe fails. A line for each inbound that is not ready says why

-o wide cuts nothing, and adds:
WORKLOAD   what its certificate identifies; none on Kubernetes, and where it has neither a workload nor a service
OUTBOUNDS  service:port of each outbound
LABELS     of the object`

type dataplaneStatus struct {
	Draining bool            `json:"draining"`
	Drain    string          `json:"drain,omitempty"`
	Inbounds []inboundStatus `json:"inbounds"`
}

type inboundStatus struct {
	Health   string   `json:"health"`
	Reason   string   `json:"reason,omitempty"`
	Services []string `json:"services,omitempty"`
}

func newDataplaneStatus(d *adminv1.Dataplane) dataplaneStatus {
	status := dataplaneStatus{Draining: d.GetDraining(), Drain: d.GetDrain(), Inbounds: []inboundStatus{}}
	for _, in := range d.GetInbounds() {
		status.Inbounds = append(status.Inbounds, inboundStatus{Health: in.GetHealth().String(), Reason: in.GetReason(), Services: in.GetServices()})
	}
	return status
}

func listDataplanes(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*listing, error) {
	response, err := api.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	l := &listing{
		header: []string{"MESH", "NAME", "ADDRESS", "SERVICES", "HEALTH"},
		more:   []string{"WORKLOAD", "OUTBOUNDS", "LABELS"}, tail: response.GetTail(),
	}
	for _, entry := range response.GetDataplanes() {
		var d mesh.Dataplane
		o, err := newObject(mesh.KindDataplane, entry.GetObject(), &d, newDataplaneStatus(entry))
		if err != nil {
			return nil, err
		}
		var services, all, notes []string
		for i, in := range d.Spec.Networking.Inbound {
			h := &adminv1.InboundHealth{}
			if i < len(entry.GetInbounds()) {
				h = entry.GetInbounds()[i]
			}
			service := func(names string) string {
				return fmt.Sprintf("%s:%d/%s", cmp.Or(in.Tags.Service(), names, in.Name), in.Port, in.AppProtocol())
			}
			services, all = append(services, service(printer.FirstFew(h.GetServices(), "|"))), append(all, service(strings.Join(h.GetServices(), "|")))
			if h.GetReason() != "" {
				notes = append(notes, fmt.Sprintf("%s: %s: %s", stateText(h.GetHealth()), services[i], h.GetReason()))
			}
		}
		if drain := entry.GetDrain(); drain != "" {
			notes = append(notes, "drain: "+drain)
		}
		l.documents = append(l.documents, o)
		var outbounds []string
		for _, out := range d.Spec.Networking.Outbound {
			outbounds = append(outbounds, fmt.Sprintf("%s:%d", out.Service(), out.Port))
		}
		cells := func(services []string) []string {
			return []string{d.Mesh, d.Name, d.Spec.Networking.Address, strings.Join(services, ","), dataplaneHealth(entry)}
		}
		l.rows = append(l.rows, printer.Row{
			Notes: notes, Cells: cells(services), Wide: cells(all),
			More: []string{d.Workload(), strings.Join(outbounds, ","), labelText(d.Labels)},
		})
	}
	return l, nil
}

// labelText returns labels as kubectl --show-labels does.
func labelText(labels map[string]string) string {
	texts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, key+"="+labels[key])
	}
	return strings.Join(texts, ",")
}

func dataplaneHealth(d *adminv1.Dataplane) string {
	inbounds := d.GetInbounds()
	ready, draining := 0, false
	for _, in := range inbounds {
		switch in.GetHealth() {
		case adminv1.Endpoint_READY:
			ready++
		case adminv1.Endpoint_DRAINING:
			draining = true
		}
	}
	switch {
	case d.GetDraining() || draining:
		return "draining"
	case len(inbounds) == 0:
		return ""
	case ready == len(inbounds):
		return "ready"
	case ready == 0:
		return "not-ready"
	default:
		return fmt.Sprintf("%d/%d-ready", ready, len(inbounds))
	}
}

const serviceColumns = `NAME        the kuma.io/service; of a port of a MeshService NAME_msvc_PORT, and of a port that a backendRef names by labels LABELS_msvc_PORT
ADDRESSES   virtual addresses; none where clients have an outbound of their own
ENDPOINTS   ready/all. A line for each that is not ready says why, and a line for each whose agent is lost that it stays: an
            agent may be dead, or only its connection. Envoys stop sending to an endpoint that does not answer. Of a service
            without endpoints a line says why it has none
SIDECARS    how many endpoints have a sidecar: these are spoken to by mTLS where the mesh has it
IDENTITIES  SPIFFE IDs that may answer

-o wide cuts nothing, and adds:
READY  addresses of the endpoints that are ready`

func listServices(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*listing, error) {
	response, err := api.ListServices(ctx, &adminv1.ListServicesRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	l := &listing{
		header: []string{"MESH", "NAME", "PROTOCOL", "ADDRESSES", "ENDPOINTS", "SIDECARS", "IDENTITIES"},
		more:   []string{"READY"}, tail: response.GetTail(),
	}
	for _, entry := range response.GetServices() {
		document, err := serviceObject(entry)
		if err != nil {
			return nil, err
		}
		var ready []string
		sidecars := 0
		notes := emptyNotes(entry.GetReasons())
		for _, e := range entry.GetEndpoints() {
			if note := endpointNote(e); note != "" {
				notes = append(notes, note)
			}
			if e.GetHealth() == adminv1.Endpoint_READY {
				ready = append(ready, e.GetAddress())
			}
			if e.GetSidecar() {
				sidecars++
			}
		}
		l.documents = append(l.documents, document)
		cells := func(join func([]string, string) string) []string {
			return []string{
				entry.GetMesh(), entry.GetName(), entry.GetProtocol(), join(entry.GetAddresses(), ","),
				fmt.Sprintf("%d/%d", len(ready), len(entry.GetEndpoints())), strconv.Itoa(sidecars), join(entry.GetIdentities(), ","),
			}
		}
		l.rows = append(l.rows, printer.Row{Notes: notes, Cells: cells(printer.FirstFew), Wide: cells(strings.Join), More: []string{strings.Join(ready, ",")}})
	}
	return l, nil
}

// emptyNotes are the reasons why a service has no endpoint, if it has none, as notes.
func emptyNotes(reasons []string) []string {
	notes := slices.Clone(reasons)
	if len(notes) > 0 {
		notes[0] = "no endpoint: " + notes[0]
	}
	return notes
}

// serviceStatus is what a service is made of: its Service, and inbounds of Dataplanes.
type serviceStatus struct {
	Endpoints  []json.RawMessage `json:"endpoints"`
	Identities []string          `json:"identities"`
	// Reasons say why there is no endpoint, and who calls it.
	Reasons []string `json:"reasons,omitempty"`
}

// serviceObject returns the Service that has the same effect as the one in the store, if there is one: its endpoints are
// those that a Service names, since the others are inbounds of Dataplanes. A service that consists of inbounds alone becomes a
// Service that says nothing new.
func serviceObject(s *adminv1.Service) (*object, error) {
	spec := &mesh.ServiceSpec{Protocol: mesh.Protocol(s.GetProtocol()), Addresses: s.GetAddresses(), Headless: s.GetHeadless()}
	if s.GetAffinity() {
		spec.SessionAffinity = mesh.AffinityClientIP
	}
	if s.GetLocal() {
		spec.InternalTrafficPolicy = mesh.TrafficLocal
	}
	status := serviceStatus{Endpoints: []json.RawMessage{}, Identities: append([]string{}, s.GetIdentities()...), Reasons: s.GetReasons()}
	for _, e := range s.GetEndpoints() {
		body, err := printer.MessageJSON(e)
		if err != nil {
			return nil, err
		}
		status.Endpoints = append(status.Endpoints, body)
		if !e.GetDeclared() {
			continue
		}
		at, err := netip.ParseAddrPort(e.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("decode an endpoint of service %q: %w", s.GetName(), err)
		}
		endpoint := mesh.ServiceEndpoint{Address: at.Addr().String(), Port: uint32(at.Port()), Dataplane: e.GetDataplane(), NodeName: e.GetNode()}
		if e.GetHealth() != adminv1.Endpoint_READY {
			endpoint.Health = &mesh.EndpointHealth{Ready: new(bool)}
		}
		if e.GetHealth() == adminv1.Endpoint_DRAINING {
			endpoint.Health.Serving = new(true)
		}
		spec.Endpoints = append(spec.Endpoints, endpoint)
	}
	return &object{Type: mesh.KindService, Mesh: s.GetMesh(), Name: s.GetName(), Spec: spec, Status: status}, nil
}

// stateText says in words that an inbound is not ready, or drains.
func stateText(h adminv1.Endpoint_Health) string {
	if h == adminv1.Endpoint_DRAINING {
		return "draining"
	}
	return "not ready"
}

// endpointNote says why an endpoint is not ready, or that its agent is lost. It is "" if there is nothing to say.
func endpointNote(e *adminv1.Endpoint) string {
	who := e.GetAddress()
	if e.GetDataplane() != "" {
		who += " (" + e.GetDataplane() + ")"
	}
	switch {
	case e.GetReason() != "" && e.GetHealth() == adminv1.Endpoint_READY:
		return fmt.Sprintf("%s: %s", who, e.GetReason())
	case e.GetReason() != "":
		return fmt.Sprintf("%s: %s: %s", stateText(e.GetHealth()), who, e.GetReason())
	case e.GetHealth() == adminv1.Endpoint_DRAINING:
		return "draining: " + who
	case e.GetAgentLostSince() != nil:
		return fmt.Sprintf("%s: agent lost %s ago, endpoint stays", who, timeSince(e.GetAgentLostSince()))
	default:
		return ""
	}
}
