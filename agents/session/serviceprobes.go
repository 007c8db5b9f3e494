package session

import (
	"net/netip"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sonde-mesh/sonde/agents/call"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/facts"
)

// serviceProbes returns the checks that the agent of a written Dataplane has to make, nil for another one.
func (s *Sessions) serviceProbes(id mesh.ID) *agentv1.ControlMessage {
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

// MayReport reports whether the agent of a proxy reports its applications, as far as that is known, and the order of its session if that is
// with this replica.
func (s *Sessions) MayReport(id mesh.ID) (reports bool, session facts.Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	if sess == nil {
		return true, facts.Order{}
	}
	return sess.has(agentv1.FeatureServiceProbes), sess.order
}

// AskAgain makes the session of a proxy, if it has one, send the ServiceProbes again, and so the agent report all: what it has said while
// its Dataplane, or a probe, was not there has been ignored.
func (s *Sessions) AskAgain(id mesh.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		sess.askAgain = true
	}
}

// takeAskAgain reports whether AskAgain was called.
func (s *Sessions) takeAskAgain(sess *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := sess.askAgain
	sess.askAgain = false
	return again
}

// readinessChanged records what an agent reports of its applications.
func (s *Sessions) readinessChanged(sess *session, m *agentv1.Readiness) error {
	if n := len(m.GetInbounds()); n > agentv1.MaxReported {
		return status.Errorf(codes.InvalidArgument, "readiness: %d inbounds, must be at most %d", n, agentv1.MaxReported)
	}
	reported := map[netip.AddrPort]*agentv1.InboundReadiness{}
	for _, in := range m.GetInbounds() {
		at, err := netip.ParseAddrPort(in.GetInbound())
		if err != nil {
			return status.Errorf(codes.InvalidArgument, "readiness: inbound: %q: must be ip:port", call.Shorten(in.GetInbound()))
		}
		reported[at] = in
	}
	return s.inTurn(sess, func() error {
		s.o.Observed.Readiness(sess.stream.Context(), sess.peer.ID(), sess.order, reported)
		sess.wake.Set() // an endpoint's reason may have changed, which the view does not have
		return nil
	})
}
