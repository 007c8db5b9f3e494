package agents

import (
	"context"
	"maps"
	"net/netip"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// serviceProbes returns the checks that the agent of a written Dataplane has to make, nil for another one.
func (s *Server) serviceProbes(id mesh.ID) *agentv1.ControlMessage {
	_, p := s.o.View().Proxy(id)
	if p == nil || p.Dataplane.IsPod() {
		return nil
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServiceProbes{ServiceProbes: serviceProbesOf(p.Dataplane)}}
}

// serviceProbesOf returns them in the order of the inbounds.
func serviceProbesOf(d *mesh.Dataplane) *agentv1.ServiceProbes {
	all := &agentv1.ServiceProbes{}
	inbounds, others := 0, false
	for in := range d.Spec.Networking.ActiveInbounds() {
		inbounds++
		switch at := d.InboundAddress(in); {
		case d.Probed(in) && at.IsValid():
			p := serviceProbe(at, in)
			p.DeclaredNotReady = !in.DeclaredReady()
			all.Probes = append(all.Probes, p)
		case in.DeclaredReady():
			others = true
		}
	}
	all.NoOthers = inbounds > 0 && !others // a gateway has none, and serves nevertheless
	return all
}

func serviceProbe(at netip.AddrPort, in *mesh.Inbound) *agentv1.ServiceProbe {
	timing := in.ServiceProbe.Timing()
	check, application := in.ServiceCheck()
	p := &agentv1.ServiceProbe{
		Inbound: at.String(), Application: application.String(),
		Period: durationpb.New(timing.Period), Timeout: durationpb.New(timing.Timeout),
		FailureThreshold: timing.FailureThreshold, SuccessThreshold: timing.SuccessThreshold,
	}
	p.SetCheck(check)
	return p
}

// mayReport reports whether the agent of a proxy reports its applications, as far as that is known.
func (s *Server) mayReport(id mesh.ID) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	return sess == nil || sess.has(agentv1.FeatureServiceProbes)
}

// logUnkept logs that the state of applications is in memory alone. It holds nevertheless: a full disk keeps no endpoint that is dead.
func (s *Server) logUnkept(ctx context.Context, id mesh.ID, err error) {
	if err != nil {
		meshName, name := mesh.SplitID(id)
		s.o.Logger.ErrorContext(ctx, "state of applications not stored, it is lost with a restart of the control plane", "mesh", meshName, "proxy", name, "err", err)
	}
}

// readinessChanged records what an agent reports of its applications. What its Dataplane has no probe for is ignored: the agent may not
// know of the last change yet.
func (s *Server) readinessChanged(sess *session, m *agentv1.Readiness) error {
	if n := len(m.GetInbounds()); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "readiness: %d inbounds, must be at most %d", n, agentv1.MaxReported)
	}
	id, ctx := sess.peer.ID(), sess.stream.Context()
	reported := map[netip.AddrPort]*agentv1.InboundReadiness{}
	for _, in := range m.GetInbounds() {
		at, err := netip.ParseAddrPort(in.GetInbound())
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "readiness: inbound: %q: must be ip:port", shorten(in.GetInbound()))
		}
		reported[at] = in
	}
	return s.inTurn(sess, func() error {
		before := s.applications.of(id)
		err := s.applications.update(id, func(reasons map[netip.AddrPort]string) {
			probed := probedInbounds(dataplaneOf(s.o.View(), id)) // here, so that a later view finds what this one let in
			maps.DeleteFunc(reported, func(at netip.AddrPort, _ *agentv1.InboundReadiness) bool { return probed[at] == nil })
			for at, in := range reported {
				switch reason := cut.Text(in.GetReason(), agentv1.MaxReason); {
				case !in.GetNoVerdict() && in.GetReady():
					delete(reasons, at)
				case !in.GetNoVerdict():
					reasons[at] = "application probe failed: " + reason
				case waits(reasons[at]): // else the last verdict holds
					reasons[at] = noVerdict + reason
				}
			}
		})
		s.logUnkept(ctx, id, err)
		s.logReadiness(ctx, sess, before, reported)
		sess.signal() // the reason of an endpoint may be another one, which is none of the view's
		return nil
	})
}

// logReadiness logs what has changed.
func (s *Server) logReadiness(ctx context.Context, sess *session, before map[netip.AddrPort]string, reported map[netip.AddrPort]*agentv1.InboundReadiness) {
	log := s.o.Logger.With("mesh", sess.peer.Mesh, "proxy", sess.peer.Dataplane)
	for _, at := range slices.SortedFunc(maps.Keys(reported), netip.AddrPort.Compare) {
		_, was := before[at]
		switch in := reported[at]; {
		case in.GetNoVerdict(): // the agent logs it
		case in.GetReady() && was:
			log.InfoContext(ctx, "application ready", "inbound", at)
		case !in.GetReady() && (!was || waits(before[at])):
			log.WarnContext(ctx, "application not ready", "inbound", at, "reason", cut.Text(in.GetReason(), agentv1.MaxReason))
		}
	}
}
