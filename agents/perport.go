package agents

import (
	"slices"

	"google.golang.org/protobuf/proto"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

const (
	// featurePerPortProbes says that this control plane sends Probes.
	featurePerPortProbes = "per-port-probes"
	// featureProbePorts says that an agent holds the ports for probes of the per-port mode itself. One without it waits for Envoy's
	// listeners, which there are not any more.
	featureProbePorts = "probe-ports"
)

// perPortProbes returns the probes of a Dataplane that somebody has written, for its agent; nil if there is no such Dataplane. The agent
// of a pod has a probe table.
func (s *Server) perPortProbes(id mesh.ID) *agentv1.Probes {
	_, p := s.o.View().Proxy(id)
	if p == nil || p.Dataplane.IsPod() {
		return nil
	}
	d, all := p.Dataplane, &agentv1.Probes{}
	if d.ProbesMode != mesh.ProbesPerPort {
		return all
	}
	address := d.Spec.Networking.Address
	asked := func(port uint32) string { return mesh.AddrPort(address, port).String() }
	if h := d.Spec.Probes; h != nil && len(h.Endpoints) > 0 {
		all.Http = asked(h.Port)
		for _, e := range h.Endpoints {
			all.Paths = append(all.Paths, &agentv1.ProbePath{
				Path: e.Path, Asked: asked(e.InboundPort), Application: d.Application(e.InboundPort).String(), ApplicationPath: e.InboundPath,
			})
		}
	}
	for _, t := range d.Spec.TCPProbes {
		p := &agentv1.ProbePort{
			Address: asked(t.Port), Application: d.Application(t.InboundPort).String(), Grpc: t.Protocol != mesh.ProtocolTCP, AlwaysOpen: t.Protocol == mesh.ProtocolGRPC,
		}
		if p.GetGrpc() {
			p.Asked = asked(t.InboundPort)
		}
		all.Ports = append(all.Ports, p)
	}
	return all
}

// pushProbes sends the probes that the agent of a written Dataplane answers, if it has not been sent.
func (s *Server) pushProbes(sess *session) error {
	s.warnOfProbes(sess)
	now := s.perPortProbes(sess.peer.ID())
	if now == nil || sess.pushedProbes != nil && proto.Equal(now, sess.pushedProbes) {
		return nil
	}
	sess.pushedProbes = now
	return sess.stream.Send(&agentv1.ControlMessage{Message: &agentv1.ControlMessage_Probes{Probes: now}})
}

// warnOfProbes logs once in a session that its agent is too old for the mode of its Dataplane.
func (s *Server) warnOfProbes(sess *session) {
	_, p := s.o.View().Proxy(sess.peer.ID())
	if p == nil || p.Dataplane.ProbesMode != mesh.ProbesPerPort || sess.toldProbes || slices.Contains(sess.features, featureProbePorts) {
		return
	}
	sess.toldProbes = true
	s.o.Logger.WarnContext(sess.stream.Context(), "agent is too old for per-port probes: nobody answers them until it is upgraded",
		"mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane, "version", sess.version.GetSonde())
}
