package observed

import (
	"context"
	"slices"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	peerv1 "github.com/sonde-mesh/sonde/api/peer/v1"
	"github.com/sonde-mesh/sonde/facts"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/cut"
)

// Liveness records which guarded liveness probes of a pod fail, as its agent reports, and logs changes.
func (s *State) Liveness(ctx context.Context, who identity.Subject, session facts.Order, l agentv1.ReportedLiveness) {
	now := kept(l)
	before, taken := s.facts.Liveness.Say(who.ID(), facts.Fact[*peerv1.Liveness]{
		Said: &peerv1.Liveness{Order: session.Proto(), Said: now}, At: l.At, Instance: who.Instance,
	})
	if taken {
		s.logHeld(ctx, who.ID(), before.Said.GetSaid(), now)
	}
}

// kept returns a report with its reasons cut, and without unknown fields: agents do not limit their length.
func kept(l agentv1.ReportedLiveness) *agentv1.Liveness {
	m := l.AsOf(l.At)
	for _, h := range m.GetHeld() {
		h.Reason = cut.Text(h.GetReason(), agentv1.MaxReason)
	}
	return m
}

// PodLiveness returns the reports of guarded liveness probes of all replicas, by proxy.
func (s *State) PodLiveness() map[mesh.ID]agentv1.ReportedLiveness {
	all := map[mesh.ID]agentv1.ReportedLiveness{}
	for id, l := range s.facts.Liveness.All() {
		all[id] = agentv1.ReportedLiveness{Report: l.Said.GetSaid(), At: l.At}
	}
	return all
}

func (s *State) logHeld(ctx context.Context, id mesh.ID, before, now *agentv1.Liveness) {
	meshName, name := mesh.SplitID(id)
	log := s.o.Logger.With("mesh", meshName, "proxy", name)
	in := func(m *agentv1.Liveness, container string) bool {
		return slices.ContainsFunc(m.GetHeld(), func(h *agentv1.HeldLiveness) bool { return h.GetContainer() == container })
	}
	for _, h := range now.GetHeld() {
		if !in(before, h.GetContainer()) {
			log.WarnContext(ctx, "guarded liveness probe fails", "container", h.GetContainer(), "reason", h.GetReason())
		}
	}
	for _, h := range before.GetHeld() {
		if !in(now, h.GetContainer()) {
			log.InfoContext(ctx, "guarded liveness probe no longer fails", "container", h.GetContainer())
		}
	}
}
