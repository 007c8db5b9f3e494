package main

import (
	"context"
	"fmt"
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const meshServiceColumns = `SELECTOR    which Dataplanes it selects
PORTS       port:targetPort/protocol of each port, without a targetPort that is the port itself. Each is the service NAME_msvc_PORT
DATAPLANES  those that it selects
ENDPOINTS   ready/all of each port. Of a port without endpoints a line says why it has none; sondectl why NAME says it of each endpoint

-o wide cuts nothing, and adds:
SERVICES  names of the services that the ports are
LABELS    of the object`

type meshServiceStatus struct {
	Dataplanes []string                `json:"dataplanes"`
	Ports      []meshServicePortStatus `json:"ports"`
}

// meshServicePortStatus is the service that a port is.
type meshServicePortStatus struct {
	Port    uint32 `json:"port"`
	Service string `json:"service"`
	// Ready of so many Endpoints.
	Ready     uint32 `json:"ready"`
	Endpoints uint32 `json:"endpoints"`
	// Reasons say why there is no endpoint, and who calls it.
	Reasons []string `json:"reasons,omitempty"`
}

func listMeshServices(ctx context.Context, api adminv1.AdminServiceClient, filter *adminv1.Filter) (*listing, error) {
	response, err := api.ListMeshServices(ctx, &adminv1.ListMeshServicesRequest{Filter: filter})
	if err != nil {
		return nil, err
	}
	l := &listing{
		header: []string{"MESH", "NAME", "SELECTOR", "PORTS", "DATAPLANES", "ENDPOINTS"}, more: []string{"SERVICES", "LABELS"}, tail: response.GetTail(),
	}
	for _, entry := range response.GetMeshServices() {
		status := &meshServiceStatus{Dataplanes: append([]string{}, entry.GetDataplanes()...), Ports: []meshServicePortStatus{}}
		var s mesh.MeshService
		o, err := newObject(mesh.KindMeshService, entry.GetObject(), &s, status)
		if err != nil {
			return nil, err
		}
		var ports, endpoints, services, notes []string
		for i, p := range s.Spec.Ports {
			ports = append(ports, meshServicePort(p))
			if i >= len(entry.GetPorts()) {
				continue // the control plane has told less than it should
			}
			is := entry.GetPorts()[i]
			services = append(services, is.GetService())
			endpoints = append(endpoints, fmt.Sprintf("%d/%d", is.GetReady(), is.GetEndpoints()))
			for _, note := range emptyNotes(is.GetReasons()) {
				if !slices.Contains(notes, note) { // a selector that selects nothing is that of all ports
					notes = append(notes, note)
				}
			}
			status.Ports = append(status.Ports, meshServicePortStatus{p.Port, is.GetService(), is.GetReady(), is.GetEndpoints(), is.GetReasons()})
		}
		l.documents = append(l.documents, o)
		cells := func(dataplanes string) []string {
			return []string{s.Mesh, s.Name, entry.GetSelector(), strings.Join(ports, ","), dataplanes, strings.Join(endpoints, ",")}
		}
		l.rows = append(l.rows, printer.Row{
			Notes: notes, Cells: cells(printer.FirstFew(entry.GetDataplanes(), ",")), Wide: cells(strings.Join(entry.GetDataplanes(), ",")),
			More: []string{strings.Join(services, ","), labelText(s.Labels)},
		})
	}
	return l, nil
}

func meshServicePort(p mesh.MeshServicePort) string {
	target := ""
	if p.TargetPort != "" {
		target = ":" + string(p.TargetPort)
	}
	return fmt.Sprintf("%d%s/%s", p.Port, target, p.AppProtocol)
}
