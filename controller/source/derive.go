package source

import (
	"fmt"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
)

// serviceName returns the mesh's name for one port of a Service, which is also Kuma's.
func serviceName(key watch.Key, port uint32) string {
	return fmt.Sprintf("%s_%s_svc_%d", key.Name, key.Namespace, port)
}

// portUse is a port of a pod that a Service uses, with its protocol.
type portUse struct {
	port     uint32
	protocol mesh.Protocol
}

// dataplaneOf returns the Dataplane of a pod, nil if the pod has ended, has no address yet, or does not count. It has
// an inbound for each declared port and each port that a Service uses, within the bounds, but not for ports that are
// not redirected.
func dataplaneOf(key watch.Key, p *Pod, used []portUse, drain *mesh.Drain) *mesh.Dataplane {
	if p.Ended || p.Beyond || p.Address == "" {
		return nil
	}
	protocols := map[uint32][]mesh.Protocol{}
	for _, port := range p.Ports {
		protocols[port] = nil
	}
	most := min(len(protocols)+maxUndeclared, maxPodPorts) // tenants may create any number of slices
	for _, u := range used {
		speaks, known := protocols[u.port]
		if (known || len(protocols) < most) && !slices.Contains(speaks, u.protocol) {
			protocols[u.port] = append(speaks, u.protocol)
		}
	}
	d := &mesh.Dataplane{
		Meta: mesh.Meta{
			Mesh: p.Mesh, Name: mesh.ObjectDataplane(key.Namespace, key.Name),
			Labels: map[string]string{mesh.LabelWorkload: p.ServiceAccount},
		},
		Identity: mesh.Identity{Path: mesh.ServiceAccountPath(key.Namespace, p.ServiceAccount), Instance: string(p.UID)},
		Drain:    drain, SecondAddress: p.SecondAddress,
	}
	d.Spec.Networking = mesh.Networking{
		Address:             p.Address,
		TransparentProxying: &mesh.TransparentProxying{ReachableServices: p.Reachable},
	}
	if p.Gateway {
		d.Spec.Networking.Gateway = &mesh.Gateway{Type: mesh.GatewayDelegated}
	}
	if p.Node != "" {
		d.Labels[mesh.LabelNode] = p.Node
	}
	if r := p.PerPort; r != nil {
		d.Labels[mesh.AnnotationVirtualProbesMode] = string(mesh.ProbesPerPort) // shows it to operators, too
		d.Spec.Probes, d.Spec.TCPProbes = r.HTTP, slices.Clone(r.Own)
	}
	for port, speaks := range protocols {
		if !p.redirects(port) {
			continue
		}
		d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{
			Port:        port,
			Tags:        tagsOf[mesh.CommonProtocol(speaks)],
			ServerFirst: slices.Contains(p.ServerFirst, port),
		})
	}
	slices.SortFunc(d.Spec.Networking.Inbound, func(a, b mesh.Inbound) int { return int(a.Port) - int(b.Port) })
	d.SetDefaults()
	return d
}

// tagsOf has the tags of inbounds by protocol. All pods share them: a map per inbound would take more memory than the
// rest of it.
var tagsOf = func() map[mesh.Protocol]mesh.Tags {
	all := map[mesh.Protocol]mesh.Tags{}
	for _, p := range mesh.Protocols() {
		all[p] = mesh.Tags{mesh.TagProtocol: string(p)}
	}
	return all
}()

// redirects reports whether connections to a port of the pod arrive at its Envoy.
func (p *Pod) redirects(port uint32) bool {
	switch port {
	case mesh.PortRedirectIn, mesh.PortRedirectOut, mesh.PortReadiness:
		return false
	}
	return !p.Gateway && !slices.Contains(p.Excluded, port)
}

// findPod returns a pod with our sidecar, nil for any other. gone says that such a pod has ended for good, so that
// another pod may have its address. drains says that it should get no new traffic.
type findPod func(podRef) (p *Pod, gone, drains bool)

// finder finds the state of an endpoint that its slice does not have.
type finder struct {
	pod findPod
	// keep returns the state of an endpoint that the node controller may have taken away, and false if the slice applies.
	keep func(namespace string, e *sliceEndpoint, p *Pod) (kept, bool)
}

// servicesOf returns the Services of the mesh for a Service of Kubernetes, one per port.
func servicesOf(meshName string, key watch.Key, s *service, parts []*slice, find finder) []*mesh.Service {
	var all []*mesh.Service
	for _, port := range s.ports {
		o := &mesh.Service{Meta: mesh.Meta{Mesh: meshName, Name: serviceName(key, port.port)}}
		o.Spec.Protocol, o.Spec.Headless = port.protocol, s.headless
		o.Spec.SessionAffinity, o.Spec.InternalTrafficPolicy = s.affinity, s.policy
		for _, ip := range s.clusterIPs {
			o.Spec.Addresses = append(o.Spec.Addresses, mesh.JoinHostPort(ip, port.port))
		}
		at := map[string]int{} // index of the endpoint by address and port
		for _, part := range parts {
			p, found := part.portNamed(port.name)
			// In a dual-stack service each pod counts once; a headless one has all addresses, since callers use them directly.
			if !found || part.family != s.family && !s.headless {
				continue
			}
			for i := range part.endpoints {
				if e, ok := endpointOf(o, key.Namespace, &part.endpoints[i], p.port, find); ok {
					addEndpoint(&o.Spec, at, e)
				}
			}
		}
		o.SetDefaults()
		all = append(all, o)
	}
	return all
}

// addEndpoint adds an endpoint. While an endpoint moves between slices, both slices have it: the healthier state
// counts.
func addEndpoint(s *mesh.ServiceSpec, at map[string]int, e mesh.ServiceEndpoint) {
	address := mesh.JoinHostPort(e.Address, e.Port)
	i, there := at[address]
	switch {
	case !there:
		at[address] = len(s.Endpoints)
		s.Endpoints = append(s.Endpoints, e)
	case e.Health.IsReady() && !s.Endpoints[i].Health.IsReady(),
		e.Health.IsServing() && !s.Endpoints[i].Health.IsServing():
		s.Endpoints[i] = e
	}
}

// endpointOf returns an endpoint, and false for an ended pod of the mesh: without its sidecar, plaintext would go to
// the pod that has its address now.
func endpointOf(
	s *mesh.Service, namespace string, e *sliceEndpoint, port uint32, find finder,
) (mesh.ServiceEndpoint, bool) {
	r := mesh.ServiceEndpoint{Address: e.address, Port: port, NodeName: e.node}
	if !e.ready {
		r.Health = &mesh.EndpointHealth{Ready: new(bool), Serving: new(e.serving)}
	}
	p, gone, drains := find.pod(e.ref(namespace))
	if gone {
		return r, false
	}
	if k, is := find.keep(namespace, e, p); is {
		r.Health, r.Frozen = k.health(), k.frozen
	}
	if r.Health.IsReady() && drains { // like a terminating endpoint, it serves only without another one
		r.Health = &mesh.EndpointHealth{Ready: new(bool), Serving: new(true)}
	}
	if p.away(e) {
		p.takeAway(&r)
	}
	if p != nil && p.Mesh == s.Mesh && p.redirects(port) {
		r.Dataplane = mesh.ObjectDataplane(namespace, e.podName)
	}
	return r, true
}
