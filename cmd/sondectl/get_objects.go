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

const dataplaneColumns = `SERVICES  service:port/protocol of each inbound: the service of its tag, else those of MeshServices and Services, else the inbound's name
HEALTH    of the inbounds: ready, not ready, or how many are; unchecked if all are ready and nobody checks the application of one, since it
          has no serviceProbe; draining if the proxy ends or should get no new traffic, as while a
          guarded liveness probe fails; stopped if its agent has drained and ended; outbounds-not-ready if its Envoy
          does not listen at an outbound, and nothing else is wrong. Of a dataplane without inbounds it is that of the outbounds. A line for
          each that is not ready says why

-o wide cuts nothing, and adds:
WORKLOAD   what its certificate identifies; none on Kubernetes, and where it has neither a workload nor a service
OUTBOUNDS  service:port of each outbound
LABELS     of the object`

type dataplaneStatus struct {
	Draining bool            `json:"draining"`
	Stopped  bool            `json:"stopped,omitempty"`
	Drain    string          `json:"drain,omitempty"`
	Inbounds []inboundStatus `json:"inbounds"`
	// Outbounds are those at which its Envoy listens.
	Outbounds []outboundStatus `json:"outbounds,omitempty"`
}

type outboundStatus struct {
	Address string `json:"address"`
	Service string `json:"service,omitempty"`
	Health  string `json:"health"`
	Reason  string `json:"reason,omitempty"`
}

type inboundStatus struct {
	Health   string   `json:"health"`
	Reason   string   `json:"reason,omitempty"`
	Services []string `json:"services,omitempty"`
	// Unchecked says that it is ready, and nobody checks its application.
	Unchecked bool `json:"unchecked,omitempty"`
	// Serves are those of Services that it gets traffic of though it drains.
	Serves []string `json:"serves,omitempty"`
}

func newDataplaneStatus(d *adminv1.Dataplane) dataplaneStatus {
	status := dataplaneStatus{Draining: d.GetDraining(), Stopped: d.GetStopped(), Drain: d.GetDrain(), Inbounds: []inboundStatus{}}
	for _, in := range d.GetInbounds() {
		status.Inbounds = append(status.Inbounds, inboundStatus{
			Health: in.GetHealth().String(), Reason: in.GetReason(), Services: in.GetServices(), Unchecked: in.GetUnchecked(), Serves: in.GetServes(),
		})
	}
	for _, o := range d.GetOutbounds() {
		status.Outbounds = append(status.Outbounds, outboundStatus{Address: o.GetAddress(), Service: o.GetService(), Health: o.GetHealth().String(), Reason: o.GetReason()})
	}
	return status
}

func showDataplane(entry *adminv1.Dataplane) (any, printer.Row, error) {
	var d mesh.Dataplane
	o, err := newObject(mesh.KindDataplane, entry.GetObject(), &d, newDataplaneStatus(entry))
	var services, all, unchecked, notes []string
	for i, in := range d.Spec.Networking.Inbound {
		h := &adminv1.InboundHealth{}
		if i < len(entry.GetInbounds()) {
			h = entry.GetInbounds()[i]
		}
		service := func(names string) string {
			return fmt.Sprintf("%s:%d/%s", cmp.Or(in.Tags.Service(), names, in.Name), in.Port, in.AppProtocol())
		}
		services = append(services, service(printer.FirstFew(h.GetServices(), "|")))
		all = append(all, service(strings.Join(h.GetServices(), "|")))
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
	cells := func(services []string) []string {
		return []string{d.Mesh, d.Name, d.Spec.Networking.Address, strings.Join(services, ","), dataplaneHealth(entry)}
	}
	return o, printer.Row{
		Notes: notes, Cells: cells(services), Wide: cells(all),
		More: []string{d.Workload(), strings.Join(outbounds, ","), labelText(d.Labels)},
	}, err
}

// labelText returns labels as kubectl --show-labels does.
func labelText(labels map[string]string) string {
	texts := make([]string, 0, len(labels))
	for _, key := range slices.Sorted(maps.Keys(labels)) {
		texts = append(texts, key+"="+labels[key])
	}
	return strings.Join(texts, ",")
}

const serviceColumns = `NAME        the kuma.io/service; of a port of a MeshService NAME_msvc_PORT, and of a port that a backendRef names by labels LABELS_msvc_PORT
ADDRESSES   virtual addresses; none where clients have an outbound of their own
ENDPOINTS   ready/all, and how many of the ready ones are unchecked: nobody checks their applications. A line for each that is not ready says why, and a line for each whose agent is lost that it stays: an
            agent may be dead, or only its connection. Envoys stop sending to an endpoint that does not answer. Of a service
            without endpoints a line says why it has none. Where none is ready, those that drain get the traffic, and a line says so
SIDECARS    how many endpoints have a sidecar: these are spoken to by mTLS where the mesh has it
IDENTITIES  SPIFFE IDs that may answer

-o wide cuts nothing, and adds:
READY  addresses of the endpoints that are ready`

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
	cells := func(join func([]string, string) string) []string {
		return []string{
			entry.GetMesh(), entry.GetName(), entry.GetProtocol(), join(entry.GetAddresses(), ","),
			readyOf(len(ready), len(entry.GetEndpoints()), len(unchecked)), strconv.Itoa(sidecars),
			join(entry.GetIdentities(), ","),
		}
	}
	return document, printer.Row{
		Notes: notes, Cells: cells(printer.FirstFew), Wide: cells(strings.Join), More: []string{strings.Join(ready, ",")},
	}, err
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
	Endpoints  []printer.Message `json:"endpoints"`
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
	status := serviceStatus{[]printer.Message{}, append([]string{}, s.GetIdentities()...), s.GetReasons()}
	for _, e := range s.GetEndpoints() {
		status.Endpoints = append(status.Endpoints, printer.Message{Message: e})
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
		if h := e.GetHealth(); h == adminv1.Endpoint_DRAINING || h == adminv1.Endpoint_STOPPED {
			endpoint.Health.Serving = new(true)
		}
		spec.Endpoints = append(spec.Endpoints, endpoint)
	}
	return &object{Type: mesh.KindService, Mesh: s.GetMesh(), Name: s.GetName(), Spec: spec, Status: status}, nil
}

// endpointNote says why an endpoint is not ready, or that its agent is lost. It is "" if there is nothing to say.
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
		return fmt.Sprintf("%s: agent lost %s ago, endpoint stays", who, describe.Since(e.GetAgentLostSince()))
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
