package observed

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"strings"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// notReported is why an inbound is not ready before its agent has reported the application.
const notReported = "the agent has not reported its application yet"

// waits reports whether an inbound with that reason still waits for a first verdict.
func waits(reason string) bool {
	return reason == notReported || strings.HasPrefix(reason, mesh.ProbeWithoutVerdictReason)
}

// updateApplications changes which inbounds of a proxy cannot take traffic. session is the order of the session that
// reported them; with a zero session, only the replica with the newest report changes them. If it returns an error, the
// new state is only in memory.
func (s *State) updateApplications(
	id mesh.ID, session facts.Order, change func(reasons map[netip.AddrPort]string),
) error {
	return s.facts.Applications.Update(id,
		func(own, newest facts.Fact[*peerv1.Applications]) facts.Fact[*peerv1.Applications] {
			before := facts.Reasons(newest.Said.GetNotServing())
			now := maps.Clone(before)
			change(now)
			if session == (facts.Order{}) {
				if maps.Equal(before, now) || newest.Order() != own.Order() {
					return own
				}
				session = own.Order()
			}
			return facts.Fact[*peerv1.Applications]{Said: &peerv1.Applications{Order: session.Proto(),
				NotServing: facts.Texts(now)}}
		})
}

// ExpectApplications records that the agent of a proxy that has never joined has not reported its applications, so that
// its endpoints wait for the report.
func (s *State) ExpectApplications(d *mesh.Dataplane) error {
	if s.Of(d.ID()).Joined {
		return nil
	}
	return s.awaitReport(d, facts.Order{})
}

// StartAgain makes the inbounds of a drained proxy wait for a report, because its application may have exited.
func (s *State) StartAgain(ctx context.Context, id mesh.ID, session facts.Order) {
	if d := s.o.View().Dataplane(id); d != nil && s.Of(id).Draining {
		s.logUnkept(ctx, id, s.awaitReport(d, session))
	}
}

// awaitReport makes the inbounds of d with a serviceProbe wait for the next report of its agent.
func (s *State) awaitReport(d *mesh.Dataplane, session facts.Order) error {
	return s.updateApplications(d.ID(), session, func(reasons map[netip.AddrPort]string) {
		for at := range probedInbounds(d) {
			reasons[at] = notReported
		}
	})
}

// probedInbounds returns the inbounds of d that have a serviceProbe, by address.
func probedInbounds(d *mesh.Dataplane) map[netip.AddrPort]*mesh.Inbound {
	all := map[netip.AddrPort]*mesh.Inbound{}
	if d == nil {
		return all
	}
	for i := range d.Spec.Networking.Inbound {
		in := &d.Spec.Networking.Inbound[i]
		if at := d.InboundAddress(in); d.Probed(in) && at.IsValid() {
			all[at] = in
		}
	}
	return all
}

// Follow adapts the state of a proxy's applications when its Dataplane changes. An inbound without a probe is
// forgotten. A new inbound with a probe waits for its first report. A ready inbound that gets a probe stays ready until
// the probe fails: otherwise a probe that is added to all replicas of a service would remove all of them at once.
// reports says whether the agent is known to report applications. Follow returns whether the agent must repeat its
// whole report, since reports without a matching Dataplane or probe were ignored.
func (s *State) Follow(before, after *mesh.Dataplane, reports bool, session facts.Order) (askAgain bool) {
	probed := probedInbounds(after)
	known := map[netip.AddrPort]bool{}
	if before != nil {
		for in := range before.Spec.Networking.ActiveInbounds() {
			if before.Probed(in) || in.DeclaredReady() {
				known[before.InboundAddress(in)] = true
			}
		}
	}
	id, forgotten := after.ID(), false
	reports = reports && before != nil && s.Of(id).Joined
	err := s.updateApplications(id, session, func(reasons map[netip.AddrPort]string) {
		for at := range probed {
			if reports && !known[at] {
				reasons[at] = notReported
			}
		}
		all := len(reasons)
		maps.DeleteFunc(reasons, func(at netip.AddrPort, _ string) bool { return probed[at] == nil })
		forgotten = len(reasons) < all
	})
	s.logUnkept(context.Background(), id, err)
	return before == nil || forgotten
}

// Readiness records an agent's report about its applications, and logs changes. It ignores inbounds without a probe in
// the Dataplane: the agent may not have received the last change.
func (s *State) Readiness(
	ctx context.Context, id mesh.ID, session facts.Order, reported map[netip.AddrPort]*agentv1.InboundReadiness,
) {
	before := s.NotServing(id)
	err := s.updateApplications(id, session, func(reasons map[netip.AddrPort]string) {
		// Read here, so that Follow finds these reports when the next view comes.
		probed := probedInbounds(s.o.View().Dataplane(id))
		maps.DeleteFunc(reported, func(at netip.AddrPort, _ *agentv1.InboundReadiness) bool { return probed[at] == nil })
		for at, in := range reported {
			switch reason := cut.Text(in.GetReason(), agentv1.MaxReason); {
			case !in.GetNoVerdict() && in.GetReady():
				delete(reasons, at)
			case !in.GetNoVerdict():
				reasons[at] = mesh.ProbeFailedReason + reason
			case waits(reasons[at]): // otherwise the last verdict stays in effect
				reasons[at] = mesh.ProbeWithoutVerdictReason + reason
			}
		}
	})
	s.logUnkept(ctx, id, err)
	s.logReadiness(ctx, id, before, reported)
}

func (s *State) logReadiness(ctx context.Context, id mesh.ID, before map[netip.AddrPort]string,
	reported map[netip.AddrPort]*agentv1.InboundReadiness) {
	meshName, name := mesh.SplitID(id)
	log := s.o.Logger.With("mesh", meshName, "proxy", name)
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

// IgnoreApplications makes all applications of a proxy count as ready, so that health.ready alone decides.
func (s *State) IgnoreApplications(ctx context.Context, id mesh.ID, session facts.Order) {
	s.logUnkept(ctx, id, s.updateApplications(id, session, func(reasons map[netip.AddrPort]string) { clear(reasons) }))
}

// NotServing returns why applications of a proxy cannot take traffic, by the inbound's address, for display.
func (s *State) NotServing(id mesh.ID) map[netip.AddrPort]string {
	return facts.Reasons(s.facts.Applications.Newest(id).Said.GetNotServing())
}

// logUnkept logs that the state of applications is only in memory. The state takes effect nevertheless: a full disk
// must not keep a dead endpoint in the mesh.
func (s *State) logUnkept(ctx context.Context, id mesh.ID, err error) {
	if err != nil {
		meshName, name := mesh.SplitID(id)
		s.o.Logger.ErrorContext(ctx, "failed to store the state of applications, a restart of the control plane loses it",
			"mesh", meshName, "proxy", name, "err", err)
	}
}
