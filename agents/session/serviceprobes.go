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

// serviceProbes returns the checks for the agent of a Dataplane outside pods, nil for pods.
func (s *Sessions) serviceProbes(id mesh.ID) *agentv1.ControlMessage {
	_, p := s.o.View().Proxy(id)
	if p == nil || p.Dataplane.IsPod() {
		return nil
	}
	return &agentv1.ControlMessage{
		Message: &agentv1.ControlMessage_ServiceProbes{ServiceProbes: serviceProbesOf(p.Dataplane)}}
}

// serviceProbesOf returns the checks of d in the order of its inbounds.
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
	all.NoOthers = inbounds > 0 && !others // a gateway serves without inbounds
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

// MayReport reports whether the agent of a proxy may report its applications, and the order of its session if it is
// with this replica. Without a session here, it assumes that the agent reports.
func (s *Sessions) MayReport(id mesh.ID) (reports bool, session facts.Order) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sess := s.sessions[id]
	if sess == nil {
		return true, facts.Order{}
	}
	return sess.has(agentv1.FeatureServiceProbes), sess.order
}

// AskAgain makes the session of a proxy, if it has one, send ServiceProbes again, so that the agent repeats its whole
// report: reports without a matching Dataplane or probe were ignored.
func (s *Sessions) AskAgain(id mesh.ID) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sess := s.sessions[id]; sess != nil {
		sess.askAgain = true
	}
}

// takeAskAgain reports whether AskAgain was called, and clears that.
func (s *Sessions) takeAskAgain(sess *session) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	again := sess.askAgain
	sess.askAgain = false
	return again
}

// readinessChanged records an agent's report about its applications.
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
		sess.wake.Set() // the reason of an endpoint may have changed without a change of the view
		return nil
	})
}
