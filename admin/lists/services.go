package lists

import (
	"context"
	"iter"
	"net/netip"
	"slices"
	"strings"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/explain"
)

func services(m *meshview.Mesh) iter.Seq2[string, *meshview.Service] { return m.Services.All() }

// ListServices implements adminv1.AdminServiceServer.
func (a *Answers) ListServices(
	ctx context.Context, r *adminv1.ListServicesRequest,
) (*adminv1.ListServicesResponse, error) {
	v, err := a.View.Within(ctx, r.GetFilter().GetMesh())
	if err != nil {
		return nil, err
	}
	matches := by(r.GetFilter())
	if r.GetPorts() {
		matches = byPorts(r.GetFilter())
	}
	all, callers, agents := ids(v, services), callersOfEmpty(v, matches), a.Agents.States()
	entries, total, err := collect(matches, all, func(meshName, name string) (*adminv1.Service, error) {
		svc := v.Mesh(meshName).Services.Get(name)
		return a.serviceEntry(v, svc, agents, callers[svc.ID()]), nil
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListServicesResponse{Services: entries, Tail: a.tail(r.GetFilter(), total, all)}, nil
}

// byPorts is like by, but also matches the services for the ports of the MeshService with the name in the filter.
func byPorts(f *adminv1.Filter) func(meshName, name string) bool {
	matches := by(f)
	return func(meshName, name string) bool {
		return matches(meshName, name) || matches(meshName, name[:max(0, strings.LastIndex(name, mesh.MeshServiceInfix))])
	}
}

func (a *Answers) serviceEntry(
	v *meshview.View, svc *meshview.Service, agents map[mesh.ID]*adminv1.AgentState, callers meshview.Clients,
) *adminv1.Service {
	m := v.Mesh(svc.Mesh)
	entry := &adminv1.Service{
		Mesh: svc.Mesh, Name: svc.Name, Protocol: string(svc.Protocol), Identities: svc.Identities,
		Headless: svc.Headless, Affinity: svc.Affinity, Local: svc.Local, Reasons: emptyReasons(m, svc, callers),
		WithoutSince: known(a.Since.Without(svc.ID())),
	}
	for _, address := range svc.Addresses {
		entry.Addresses = append(entry.Addresses, address.String())
	}
	traffic := svc.GetTraffic()
	for i, e := range svc.Endpoints {
		endpoint := a.endpointOf(v, m, e, agents)
		endpoint.GetsTraffic = traffic[i] && endpoint.GetHealth() != adminv1.Endpoint_STOPPED
		entry.Endpoints = append(entry.Endpoints, endpoint)
	}
	return entry
}

// callersOfEmpty returns the clients of those matching services that have no endpoints.
func callersOfEmpty(v *meshview.View, matches func(meshName, name string) bool) map[mesh.ID]meshview.Clients {
	var empty []mesh.ID
	for meshName, m := range v.Meshes {
		for name, svc := range m.Services.All() {
			if len(svc.Endpoints) == 0 && matches(meshName, name) {
				empty = append(empty, svc.ID())
			}
		}
	}
	return v.ClientsOf(empty)
}

// emptyReasons returns why a service has no endpoint, and which clients call it. It is empty for a service with an
// endpoint.
func emptyReasons(m *meshview.Mesh, svc *meshview.Service, callers meshview.Clients) []string {
	if len(svc.Endpoints) > 0 {
		return nil
	}
	reasons := []string{explain.NoEndpoints(m.NoEndpoints(svc, callers.Ref))}
	if len(callers.Names) > 0 {
		reasons = append(reasons, "calls fail: named by an outbound of "+mesh.Few(callers.Names))
	}
	return reasons
}

// ListMeshServices implements adminv1.AdminServiceServer.
func (a *Answers) ListMeshServices(
	ctx context.Context, r *adminv1.ListMeshServicesRequest,
) (*adminv1.ListMeshServicesResponse, error) {
	v, err := a.View.Within(ctx, r.GetFilter().GetMesh())
	if err != nil {
		return nil, err
	}
	all := ids(v, func(m *meshview.Mesh) iter.Seq2[string, *meshview.MeshService] { return m.MeshServices.All() })
	callers, agents := callersOfEmpty(v, byPorts(r.GetFilter())), a.Agents.States()
	entries, total, err := collect(by(r.GetFilter()), all, func(meshName, name string) (*adminv1.MeshService, error) {
		m := v.Mesh(meshName)
		of := m.MeshServices.Get(name)
		body, err := object(of.Object)
		entry := &adminv1.MeshService{Object: body, Selector: of.Object.Spec.Selector.String(), Dataplanes: of.Dataplanes}
		for _, port := range of.Object.Spec.Ports {
			svc := m.Services.Get(mesh.MeshServiceName(name, port.Port))
			p := &adminv1.MeshServicePort{Service: svc.Name, Endpoints: uint32(len(svc.Endpoints)),
				Reasons: emptyReasons(m, svc, callers[svc.ID()])}
			traffic := svc.GetTraffic()
			for i, e := range svc.Endpoints {
				if e.Health == meshview.Ready {
					p.Ready++
				}
				if v.Unchecked(m, e) {
					p.Unchecked++
				}
				if traffic[i] && !stopped(agents[mesh.MakeID(meshName, e.Proxy)]) {
					p.Serving++
				}
			}
			entry.Ports = append(entry.Ports, p)
		}
		return entry, err
	})
	if err != nil {
		return nil, err
	}
	return &adminv1.ListMeshServicesResponse{MeshServices: entries, Tail: a.tail(r.GetFilter(), total, all)}, nil
}

// inbound is the address of an inbound of a proxy.
type inbound struct {
	proxy mesh.ID
	at    netip.AddrPort
}

// inboundServices has the sorted names of an inbound's services, and of the services that it still serves while
// draining.
type inboundServices struct{ all, drained []string }

// servicesOfInbounds returns the services of each inbound of the matching proxies.
func servicesOfInbounds(v *meshview.View, matches func(meshName, name string) bool) map[inbound]inboundServices {
	all := map[inbound]inboundServices{}
	for meshName, m := range v.Meshes {
		for name, svc := range m.Services.All() {
			var traffic []bool
			for i, e := range svc.Endpoints {
				if e.Proxy == "" || !matches(meshName, e.Proxy) {
					continue
				}
				if traffic == nil {
					traffic = svc.GetTraffic()
				}
				key := inbound{mesh.MakeID(meshName, e.Proxy), e.Address}
				of := all[key]
				of.all = append(of.all, name)
				if e.Health == meshview.Draining && traffic[i] {
					of.drained = append(of.drained, name)
				}
				all[key] = of
			}
		}
	}
	for _, of := range all {
		slices.Sort(of.all)
		slices.Sort(of.drained)
	}
	return all
}
