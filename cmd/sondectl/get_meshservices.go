package main

import (
	"fmt"
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/cmd/sondectl/printer"
)

const meshServiceColumns = `PORTS      port:targetPort/protocol of each port; targetPort defaults to the port. Each port is the service NAME_msvc_PORT
ENDPOINTS  ready/all of each port, and the number of ready ones that are unchecked: nothing checks their applications.
           Separate lines show why a port has no endpoint, and that draining endpoints get the traffic because none is
           ready; sondectl why NAME explains each endpoint

-o wide adds:
SELECTOR    labels that select Dataplanes
DATAPLANES  the selected Dataplanes
SERVICES    names of the ports' services
LABELS      labels of the object`

type meshServiceStatus struct {
	Dataplanes []string                `json:"dataplanes"`
	Ports      []meshServicePortStatus `json:"ports"`
}

// meshServicePortStatus is the status of a port's service.
type meshServicePortStatus struct {
	Port    uint32 `json:"port"`
	Service string `json:"service"`
	// Ready counts ready Endpoints. Serving counts those that get traffic: ready ones, or draining ones if none is ready.
	Ready     uint32 `json:"ready"`
	Serving   uint32 `json:"serving"`
	Endpoints uint32 `json:"endpoints"`
	// Reasons say why the service has no endpoint, and who calls it.
	Reasons []string `json:"reasons,omitempty"`
	// Unchecked counts ready endpoints whose application nothing checks.
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
			continue // the control plane's answer is incomplete
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
	cells := []string{s.Mesh, s.Name, strings.Join(ports, ","), strings.Join(endpoints, ",")}
	return o, printer.Row{
		Notes: notes, Cells: cells, Wide: cells,
		More: []string{entry.GetSelector(), strings.Join(selected, ","), strings.Join(services, ","), labelText(s.Labels)},
	}, err
}

func meshServicePort(p mesh.MeshServicePort) string {
	target := ""
	if p.TargetPort != "" {
		target = ":" + string(p.TargetPort)
	}
	return fmt.Sprintf("%d%s/%s", p.Port, target, p.AppProtocol)
}
