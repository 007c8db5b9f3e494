package source

import (
	"fmt"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// DataplaneName is the name of a pod's Dataplane.
func DataplaneName(namespace, pod string) string { return pod + "." + namespace }

// IdentityPath is the path of a pod's SPIFFE ID.
func IdentityPath(namespace, serviceAccount string) string {
	return "/ns/" + namespace + "/sa/" + serviceAccount
}

// serviceName is the name in the mesh of one port of a Service, the same as Kuma's.
func serviceName(key watch.Key, port uint32) string {
	return fmt.Sprintf("%s_%s_svc_%d", key.Name, key.Namespace, port)
}

// portUse is a port of a pod that a Service uses, and what that speaks there.
type portUse struct {
	port     uint32
	protocol mesh.Protocol
}

// dataplaneOf returns the Dataplane of a pod, nil for one that has ended or has no address yet. Its inbounds are the declared
// ports and those that Services use; ports that are not redirected have none.
func dataplaneOf(key watch.Key, p *Pod, used []portUse) *mesh.Dataplane {
	if p.Ended || p.Address == "" {
		return nil
	}
	protocols := map[uint32][]mesh.Protocol{}
	for _, port := range p.Ports {
		protocols[port] = nil
	}
	for _, u := range used {
		protocols[u.port] = append(protocols[u.port], u.protocol)
	}
	d := &mesh.Dataplane{
		Meta: mesh.Meta{
			Mesh: p.Mesh, Name: DataplaneName(key.Namespace, key.Name), Labels: map[string]string{mesh.LabelWorkload: p.ServiceAccount},
		},
		Identity: mesh.Identity{Path: IdentityPath(key.Namespace, p.ServiceAccount), Instance: string(p.UID)},
	}
	d.Spec.Networking = mesh.Networking{
		Address:             p.Address,
		TransparentProxying: &mesh.TransparentProxying{ReachableServices: p.Reachable},
	}
	for port, speaks := range protocols {
		if !p.redirects(port) {
			continue
		}
		d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{
			Port:        port,
			Tags:        mesh.Tags{mesh.TagProtocol: string(mesh.CommonProtocol(speaks))},
			ServerFirst: slices.Contains(p.ServerFirst, port),
		})
	}
	slices.SortFunc(d.Spec.Networking.Inbound, func(a, b mesh.Inbound) int { return int(a.Port) - int(b.Port) })
	d.SetDefaults()
	return d
}

// redirects reports whether connections to a port of the pod arrive at its Envoy.
func (p *Pod) redirects(port uint32) bool {
	switch port {
	case mesh.PortRedirectIn, mesh.PortRedirectOut, mesh.PortReadiness:
		return false
	}
	return !slices.Contains(p.Excluded, port)
}

// servicesOf returns the Services of the mesh that a Service becomes, one for each port. podOf returns the pod with a UID that has
// our sidecar, nil for any other.
func servicesOf(meshName string, key watch.Key, s *service, parts []*slice, podOf func(types.UID) *Pod) []*mesh.Service {
	var all []*mesh.Service
	for _, port := range s.ports {
		o := &mesh.Service{Meta: mesh.Meta{Mesh: meshName, Name: serviceName(key, port.port)}}
		o.Spec.Protocol, o.Spec.Headless = port.protocol, s.headless
		for _, ip := range s.clusterIPs {
			o.Spec.Addresses = append(o.Spec.Addresses, mesh.JoinHostPort(ip, port.port))
		}
		for _, part := range parts {
			at, found := part.portNamed(port.name)
			// Of a dual-stack service each pod counts once; one that is called by its own address has each of them.
			if !found || part.family != s.family && !s.headless {
				continue
			}
			for i := range part.endpoints {
				o.Spec.Endpoints = append(o.Spec.Endpoints, endpointOf(o, key.Namespace, &part.endpoints[i], at.port, podOf))
			}
		}
		o.SetDefaults()
		all = append(all, o)
	}
	return all
}

func endpointOf(s *mesh.Service, namespace string, e *sliceEndpoint, port uint32, podOf func(types.UID) *Pod) mesh.ServiceEndpoint {
	r := mesh.ServiceEndpoint{Address: e.address, Port: port}
	if !e.ready {
		r.Health = &mesh.EndpointHealth{Ready: new(bool), Serving: new(e.serving)}
	}
	if p := podOf(e.pod); p != nil && p.Mesh == s.Mesh && p.redirects(port) && !p.Ended && p.Address != "" {
		r.Dataplane = DataplaneName(namespace, e.podName)
	}
	return r
}
