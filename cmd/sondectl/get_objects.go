package main

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/describe"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
	"github.com/sonde-mesh/sonde/cmd/sondectl/why"
)

const meshColumns = `MTLS        on if proxies speak mTLS
MODE        STRICT accepts only mTLS, PERMISSIVE also plaintext
BACKEND     the certificate authority in use
CA-EXPIRES  expiry of the authority's certificate
PROXIES     number of connected/all proxies
SERVICES    number of services

-o wide adds:
CERT-VALIDITY  validity of the proxies' certificates
PASSTHROUGH    on if redirected applications may call destinations outside the mesh
LABELS         of the object`

type meshStatus struct {
	CAExpires *time.Time `json:"caExpires,omitempty"`
	Proxies   uint32     `json:"proxies"`
	Connected uint32     `json:"connected"`
	Services  uint32     `json:"services"`
}

func showMesh(entry *adminv1.Mesh) (any, printer.Row, error) {
	status := meshStatus{Proxies: entry.GetProxies(), Connected: entry.GetConnected(), Services: entry.GetServices()}
	if t := entry.GetCaExpires(); t != nil {
		expires := t.AsTime()
		status.CAExpires = &expires
	}
	var m mesh.Mesh
	o, err := newObject(mesh.KindMesh, entry.GetObject(), &m, status)
	mtls, mode, backend, validity, passthrough := "off", "", "", "", "off"
	if b := m.Backend(); b != nil {
		mtls, mode, backend, validity = "on", string(b.Mode), b.Name, mesh.Duration(b.CertValidity()).String()
	}
	if m.Passthrough() {
		passthrough = "on"
	}
	cells := []string{
		m.Name, mtls, mode, backend, describe.Until(entry.GetCaExpires()),
		fmt.Sprintf("%d/%d", status.Connected, status.Proxies), strconv.Itoa(int(status.Services)),
	}
	return o, printer.Row{Cells: cells, Wide: cells, More: []string{validity, passthrough, labelText(m.Labels)}}, err
}

const dataplaneColumns = `SERVICES  service:port of the first inbound, and the number of others. The service comes from its tag, else from MeshServices
          and Services, else it is the inbound's name
HEALTH    health of the inbounds: ready, not-ready, or the number of ready ones
          unchecked            all are ready, but nothing checks the application of an inbound without a serviceProbe
          draining             the proxy is stopping or should get no new traffic, such as while a guarded liveness
                               probe fails
          stopped              the agent has drained and stopped
          outbounds-not-ready  Envoy does not listen at an outbound, and nothing else is wrong
          For a dataplane without inbounds, health of the outbounds. A line for each inbound or outbound that is not
          ready has the reason

-o wide abbreviates nothing, shows service:port/protocol of each inbound, and adds:
ADDRESS    address of the inbounds
WORKLOAD   identity in the certificate; none on Kubernetes, or without a workload and a service
OUTBOUNDS  service:port of each outbound
LABELS     labels of the object`

type dataplaneStatus struct {
	Draining bool            `json:"draining"`
	Stopped  bool            `json:"stopped,omitempty"`
	Drain    string          `json:"drain,omitempty"`
	Inbounds []inboundStatus `json:"inbounds"`
	// Outbounds are those at which Envoy listens.
	Outbounds []outboundStatus `json:"outbounds,omitempty"`
}

type outboundStatus struct {
	Address string `json:"address"`
	Service string `json:"service,omitempty"`
	Health  string `json:"health"`
	Reason  string `json:"reason,omitempty"`
	// Since is when this health began, nil if that was before the replica that answers started.
	Since *time.Time `json:"since,omitempty"`
}

type inboundStatus struct {
	Health   string   `json:"health"`
	Reason   string   `json:"reason,omitempty"`
	Services []string `json:"services,omitempty"`
	// Since is as in outboundStatus.
	Since *time.Time `json:"since,omitempty"`
	// Unchecked means that the inbound is ready, and nothing checks its application.
	Unchecked bool `json:"unchecked,omitempty"`
	// Serves are the Services whose traffic the inbound gets although it drains.
	Serves []string `json:"serves,omitempty"`
}

func newDataplaneStatus(d *adminv1.Dataplane) dataplaneStatus {
	status := dataplaneStatus{
		Draining: d.GetDraining(), Stopped: d.GetStopped(), Drain: d.GetDrain(), Inbounds: []inboundStatus{},
	}
	for _, in := range d.GetInbounds() {
		status.Inbounds = append(status.Inbounds, inboundStatus{
			Health: in.GetHealth().String(), Reason: in.GetReason(), Services: in.GetServices(), Unchecked: in.GetUnchecked(),
			Serves: in.GetServes(), Since: describe.At(in.GetSince()),
		})
	}
	for _, o := range d.GetOutbounds() {
		status.Outbounds = append(status.Outbounds, outboundStatus{
			Address: o.GetAddress(), Service: o.GetService(), Health: o.GetHealth().String(), Reason: o.GetReason(),
			Since: describe.At(o.GetSince()),
		})
	}
	return status
}

func showDataplane(entry *adminv1.Dataplane) (any, printer.Row, error) {
	var d mesh.Dataplane
	o, err := newObject(mesh.KindDataplane, entry.GetObject(), &d, newDataplaneStatus(entry))
	var short, services, all, unchecked, notes []string
	for i, in := range d.Spec.Networking.Inbound {
		h := &adminv1.InboundHealth{}
		if i < len(entry.GetInbounds()) {
			h = entry.GetInbounds()[i]
		}
		service := func(names string) string {
			return fmt.Sprintf("%s:%d", cmp.Or(in.Tags.Service(), names, in.Name), in.Port)
		}
		protocol := "/" + string(in.AppProtocol())
		short = append(short, service(printer.First(1, h.GetServices(), "|")))
		services = append(services, service(printer.FirstFew(h.GetServices(), "|"))+protocol)
		all = append(all, service(strings.Join(h.GetServices(), "|"))+protocol)
		if h.GetUnchecked() {
			unchecked = append(unchecked, services[i])
		}
		if h.GetReason() != "" {
			notes = append(notes, fmt.Sprintf("%s: %s: %s", describe.HealthText(h.GetHealth()), services[i], h.GetReason()))
		}
		if len(h.GetServes()) > 0 {
			notes = append(notes, fmt.Sprintf("draining: %s: %s", services[i], servesText(h)))
		}
	}
	notes = append(append(notes, uncheckedNotes(unchecked)...), outboundNotes(entry)...)
	if drain := entry.GetDrain(); drain != "" {
		notes = append(notes, "drain: "+drain)
	}
	var outbounds []string
	for _, out := range d.Spec.Networking.Outbound {
		outbounds = append(outbounds, fmt.Sprintf("%s:%d", out.Service(), out.Port))
	}
	cells := func(services string) []string { return []string{d.Mesh, d.Name, services, dataplaneHealth(entry)} }
	return o, printer.Row{
		Notes: notes, Cells: cells(printer.First(1, short, ",")), Wide: cells(strings.Join(all, ",")),
		More: []string{d.Spec.Networking.Address, d.Workload(), strings.Join(outbounds, ","), labelText(d.Labels)},
	}, err
}

// labelText formats labels like kubectl --show-labels.
func labelText(labels map[string]string) string {
	texts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, key+"="+labels[key])
	}
	return strings.Join(texts, ",")
}

const serviceColumns = `NAME        the kuma.io/service; NAME_msvc_PORT for a port of a MeshService, LABELS_msvc_PORT for a port that a backendRef
            names by labels
ENDPOINTS   ready/all, and the number of ready ones that are unchecked: nothing checks their applications. Separate
            lines show why an endpoint is not ready, why a service has no endpoint, and that draining endpoints get the
            traffic because none is ready. An endpoint whose agent is lost remains, and a line says so: the agent may be
            dead, or only its connection. Envoys stop sending to an endpoint that does not respond
SIDECARS    number of endpoints with a sidecar, to which clients speak mTLS if the mesh has it

-o wide adds:
ADDRESSES   virtual addresses; none if clients use their own outbounds
IDENTITIES  SPIFFE IDs that the service's endpoints may have
READY       addresses of the ready endpoints`

func showService(entry *adminv1.Service) (any, printer.Row, error) {
	document, err := serviceObject(entry)
	var ready, unchecked []string
	sidecars := 0
	notes := emptyNotes(entry.GetReasons())
	for _, e := range entry.GetEndpoints() {
		if serves := why.Nevertheless(entry, e); serves != "" && !slices.Contains(notes, drainingServe+serves) {
			notes = append(notes, drainingServe+serves)
		}
	}
	for _, e := range entry.GetEndpoints() {
		if note := endpointNote(e); note != "" {
			notes = append(notes, note)
		}
		if e.GetHealth() == adminv1.Endpoint_READY {
			ready = append(ready, e.GetAddress())
		}
		if e.GetUnchecked() {
			unchecked = append(unchecked, endpointName(e))
		}
		if e.GetSidecar() {
			sidecars++
		}
	}
	notes = append(notes, uncheckedNotes(unchecked)...)
	cells := []string{
		entry.GetMesh(), entry.GetName(), entry.GetProtocol(),
		readyOf(len(ready), len(entry.GetEndpoints()), len(unchecked)), strconv.Itoa(sidecars),
	}
	return document, printer.Row{
		Notes: notes, Cells: cells, Wide: cells,
		More: []string{
			strings.Join(entry.GetAddresses(), ","), strings.Join(entry.GetIdentities(), ","), strings.Join(ready, ","),
		},
	}, err
}

// emptyNotes returns notes with the reasons why a service has no endpoint.
func emptyNotes(reasons []string) []string {
	notes := slices.Clone(reasons)
	if len(notes) > 0 {
		notes[0] = "no endpoint: " + notes[0]
	}
	return notes
}

// serviceStatus has the parts of a service: its Service, and inbounds of Dataplanes.
type serviceStatus struct {
	Endpoints  []printer.Message `json:"endpoints"`
	Identities []string          `json:"identities"`
	// Reasons say why the service has no endpoint, and who calls it.
	Reasons []string `json:"reasons,omitempty"`
}

// serviceObject returns a Service with the same effect as the one in the store. It only has the endpoints that a
// Service names, since the others are inbounds of Dataplanes. For a service that consists only of inbounds, the Service
// has no effect.
func serviceObject(s *adminv1.Service) (*object, error) {
	spec := &mesh.ServiceSpec{
		Protocol: mesh.Protocol(s.GetProtocol()), Addresses: s.GetAddresses(), Headless: s.GetHeadless(),
	}
	if s.GetAffinity() {
		spec.SessionAffinity = mesh.AffinityClientIP
	}
	if s.GetLocal() {
		spec.InternalTrafficPolicy = mesh.TrafficLocal
	}
	status := serviceStatus{[]printer.Message{}, append([]string{}, s.GetIdentities()...), s.GetReasons()}
	for _, e := range s.GetEndpoints() {
		status.Endpoints = append(status.Endpoints, printer.Message{Message: e})
		if !e.GetDeclared() {
			continue
		}
		at, err := netip.ParseAddrPort(e.GetAddress())
		if err != nil {
			return nil, fmt.Errorf("decode endpoint of service %q: %w", s.GetName(), err)
		}
		endpoint := mesh.ServiceEndpoint{
			Address: at.Addr().String(), Port: uint32(at.Port()), Dataplane: e.GetDataplane(), NodeName: e.GetNode(),
		}
		if e.GetHealth() != adminv1.Endpoint_READY {
			endpoint.Health = &mesh.EndpointHealth{Ready: new(bool)}
		}
		if h := e.GetHealth(); h == adminv1.Endpoint_DRAINING || h == adminv1.Endpoint_STOPPED {
			endpoint.Health.Serving = new(true)
		}
		spec.Endpoints = append(spec.Endpoints, endpoint)
	}
	return &object{Type: mesh.KindService, Mesh: s.GetMesh(), Name: s.GetName(), Spec: spec, Status: status}, nil
}

// endpointNote says why an endpoint is not ready, or that its agent is lost; otherwise it is "".
func endpointNote(e *adminv1.Endpoint) string {
	who := endpointName(e)
	switch {
	case e.GetReason() != "" && e.GetHealth() == adminv1.Endpoint_READY:
		return fmt.Sprintf("%s: %s", who, e.GetReason())
	case e.GetReason() != "":
		return fmt.Sprintf("%s: %s: %s", describe.HealthText(e.GetHealth()), who, e.GetReason())
	case e.GetHealth() == adminv1.Endpoint_DRAINING, e.GetHealth() == adminv1.Endpoint_STOPPED:
		return describe.HealthText(e.GetHealth()) + ": " + who
	case e.GetAgentLostSince() != nil:
		return fmt.Sprintf("%s: agent lost %s ago, endpoint remains", who, describe.Since(e.GetAgentLostSince()))
	default:
		return ""
	}
}

// endpointName is the address of an endpoint, and its Dataplane if it has one.
func endpointName(e *adminv1.Endpoint) string {
	if e.GetDataplane() == "" {
		return e.GetAddress()
	}
	return e.GetAddress() + " (" + e.GetDataplane() + ")"
}
