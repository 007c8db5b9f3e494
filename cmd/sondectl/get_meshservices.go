package main

import (
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
ENDPOINTS   ready/all of each port, and how many of the ready ones are unchecked: nobody checks their applications. Of a port without endpoints a line says why it has none; sondectl why NAME says it of each endpoint. Where none
            is ready, those that drain get the traffic, and a line says so

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
	// Ready of so many Endpoints, of which Serving get traffic: ready ones, or where none is those that drain.
	Ready     uint32 `json:"ready"`
	Serving   uint32 `json:"serving"`
	Endpoints uint32 `json:"endpoints"`
	// Reasons say why there is no endpoint, and who calls it.
	Reasons []string `json:"reasons,omitempty"`
	// Unchecked of the ready ones have an application that nobody checks.
	Unchecked uint32 `json:"unchecked,omitempty"`
}

func showMeshService(entry *adminv1.MeshService) (any, printer.Row, error) {
	selected := entry.GetDataplanes()
	status := &meshServiceStatus{Dataplanes: append([]string{}, selected...), Ports: []meshServicePortStatus{}}
	var s mesh.MeshService
	o, err := newObject(mesh.KindMeshService, entry.GetObject(), &s, status)
	var ports, endpoints, services, notes []string
	for i, p := range s.Spec.Ports {
		ports = append(ports, meshServicePort(p))
		if i >= len(entry.GetPorts()) {
			continue // the control plane has told less than it should
		}
		is := entry.GetPorts()[i]
		services = append(services, is.GetService())
		endpoints = append(endpoints, readyOf(int(is.GetReady()), int(is.GetEndpoints()), int(is.GetUnchecked())))
		for _, note := range emptyNotes(is.GetReasons()) {
			if !slices.Contains(notes, note) { // all ports have the same selector
				notes = append(notes, note)
			}
		}
		status.Ports = append(status.Ports, meshServicePortStatus{
			p.Port, is.GetService(), is.GetReady(), is.GetServing(), is.GetEndpoints(), is.GetReasons(), is.GetUnchecked(),
		})
		if is.GetReady() == 0 && is.GetServing() > 0 {
			notes = append(notes, fmt.Sprintf("%sno endpoint of service %s is ready", drainingServe, is.GetService()))
		}
	}
	cells := func(dataplanes string) []string {
		return []string{
			s.Mesh, s.Name, entry.GetSelector(), strings.Join(ports, ","), dataplanes, strings.Join(endpoints, ","),
		}
	}
	return o, printer.Row{
		Notes: notes, Cells: cells(printer.FirstFew(selected, ",")), Wide: cells(strings.Join(selected, ",")),
		More: []string{strings.Join(services, ","), labelText(s.Labels)},
	}, err
}

func meshServicePort(p mesh.MeshServicePort) string {
	target := ""
	if p.TargetPort != "" {
		target = ":" + string(p.TargetPort)
	}
	return fmt.Sprintf("%d%s/%s", p.Port, target, p.AppProtocol)
}
