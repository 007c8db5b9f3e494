package session

import (
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// perPortProbes returns the per-port probes of a Dataplane outside pods, for its agent; nil without such a Dataplane.
// The agent of a pod has a probe table instead.
func (s *Sessions) perPortProbes(id mesh.ID) *agentv1.ControlMessage {
	_, p := s.o.View().Proxy(id)
	if p == nil || p.Dataplane.IsPod() {
		return nil
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Probes{Probes: perPortProbesOf(p.Dataplane)}}
}

func perPortProbesOf(d *mesh.Dataplane) *agentv1.Probes {
	all := &agentv1.Probes{}
	if d.ProbesMode != mesh.ProbesPerPort {
		return all
	}
	address := d.Spec.Networking.Address
	asked := func(port uint32) string { return mesh.AddrPort(address, port).String() }
	if h := d.Spec.Probes; h != nil && len(h.Endpoints) > 0 {
		all.Http = asked(h.Port)
		for _, e := range h.Endpoints {
			all.Paths = append(all.Paths, &agentv1.ProbePath{
				Path: e.Path, Asked: asked(e.InboundPort), Application: d.Application(e.InboundPort).String(),
				ApplicationPath: e.InboundPath,
			})
		}
	}
	for _, t := range d.Spec.TCPProbes {
		p := &agentv1.ProbePort{
			Address: asked(t.Port), Application: d.Application(t.InboundPort).String(), Grpc: t.Protocol != mesh.ProtocolTCP,
			AlwaysOpen: t.Protocol == mesh.ProtocolGRPC,
		}
		if p.GetGrpc() {
			p.Asked = asked(t.InboundPort)
		}
		all.Ports = append(all.Ports, p)
	}
	return all
}
