package xds

import (
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
)

const (
	endpointsPerService = 10
	// maxOwners is the largest number of Dataplanes with inbounds.
	maxOwners = 1000
	// serviceNarrow is visible to as many proxies as it has endpoints. No other proxy has an outbound to
	// it.
	serviceNarrow = "narrow"
	portInbound   = 8000
	portNarrow    = 9000
)

// topology is the size of a mesh in which every proxy sees every service by a virtual address,
// except for the narrow service, which few proxies see.
type topology struct{ proxies, services int }

func (w topology) String() string { return fmt.Sprintf("%dx%d", w.proxies, w.services) }

// forms has the current form of each service; true means that one of its endpoints is not ready.
type forms []bool

func (w topology) forms() forms { return make(forms, w.services+1) }

// narrow is the index of the narrow service.
func (w topology) narrow() int { return w.services }

func proxyName(i int) string { return fmt.Sprintf("proxy-%05d", i) }

func proxyID(i int) mesh.ID { return mesh.MakeID(mesh.DefaultMesh, proxyName(i)) }

func (w topology) serviceName(i int) string {
	if i == w.narrow() {
		return serviceNarrow
	}
	return fmt.Sprintf("service-%04d", i)
}

func workload(proxy int) string { return fmt.Sprintf("workload-%04d", proxy%100) }

func subject(proxy int) identity.Subject {
	return identity.Subject{Mesh: mesh.DefaultMesh, Dataplane: proxyName(proxy), Path: mesh.WorkloadPath(workload(proxy))}
}

// owners is the number of Dataplanes with inbounds, which come first.
func (w topology) owners() int { return min(w.proxies, maxOwners) }

// turning is the index of the service's endpoint that changes, among all endpoints. These are spread over all
// Dataplanes, because the store reads a changing file only after it has settled.
func (w topology) turning(service int) int {
	first := service * endpointsPerService
	return first + first/w.owners()%endpointsPerService
}

// owner is the index of the Dataplane with the endpoint that changes.
func (w topology) owner(service int) int {
	if service == w.narrow() {
		return 0
	}
	return w.turning(service) % w.owners()
}

// viewers returns the range of proxies that see the service; last is exclusive.
func (w topology) viewers(service int) (first, last int) {
	if service == w.narrow() {
		return endpointsPerService, 2 * endpointsPerService
	}
	return 0, w.proxies
}

func (w topology) mesh() *mesh.Mesh {
	m := &mesh.Mesh{Name: mesh.DefaultMesh, Spec: mesh.MeshSpec{MTLS: &mesh.MTLS{
		EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin}},
	}}}
	m.SetDefaults()
	return m
}

func (w topology) meshServices() []*mesh.Service {
	all := make([]*mesh.Service, w.services)
	for i := range all {
		all[i] = &mesh.Service{
			Meta: mesh.Meta{Name: w.serviceName(i)},
			Spec: mesh.ServiceSpec{Addresses: []string{fmt.Sprintf("240.0.%d.%d:80", i/250, 1+i%250)}},
		}
		all[i].SetDefaults()
	}
	return all
}

func (w topology) dataplane(i int, now forms) *mesh.Dataplane {
	d := &mesh.Dataplane{
		Meta: mesh.Meta{Name: proxyName(i), Labels: map[string]string{mesh.LabelWorkload: workload(i)}},
		Spec: mesh.DataplaneSpec{Networking: mesh.Networking{
			Address:             fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250),
			TransparentProxying: &mesh.TransparentProxying{},
		}},
	}
	net := &d.Spec.Networking
	if owners := w.owners(); i < owners {
		for e := i; e < w.services*endpointsPerService; e += owners {
			service := e / endpointsPerService
			net.Inbound = append(net.Inbound, w.inbound(portInbound+e/owners, service, e == w.turning(service) && now[service]))
		}
	}
	if i < endpointsPerService {
		net.Inbound = append(net.Inbound, w.inbound(portNarrow, w.narrow(), i == 0 && now[w.narrow()]))
	}
	if first, last := w.viewers(w.narrow()); first <= i && i < last {
		net.Outbound = []mesh.Outbound{{Port: portNarrow, Tags: mesh.Tags{mesh.TagService: serviceNarrow}}}
	}
	d.SetDefaults()
	return d
}

func (w topology) inbound(port, service int, unready bool) mesh.Inbound {
	in := mesh.Inbound{
		Port: uint32(port), ServicePort: uint32(port) + 10_000,
		Tags: mesh.Tags{mesh.TagService: w.serviceName(service), mesh.TagProtocol: string(mesh.ProtocolHTTP)},
	}
	if unready {
		in.Health = &mesh.Health{Ready: new(bool)}
	}
	return in
}

// objects returns all objects in their first form.
func (w topology) objects() []mesh.Object {
	now := w.forms()
	all := []mesh.Object{w.mesh()}
	for _, s := range w.meshServices() {
		all = append(all, s)
	}
	for i := range w.proxies {
		all = append(all, w.dataplane(i, now))
	}
	return all
}

// turn changes the form of a service, and returns the changed Dataplane.
func (w topology) turn(service int, now forms) *mesh.Dataplane {
	now[service] = !now[service]
	return w.dataplane(w.owner(service), now)
}
