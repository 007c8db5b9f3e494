package agents

import (
	"cmp"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// probeOrder is the order of a container's probes.
var probeOrder = []string{string(mesh.ProbeStartup), string(mesh.ProbeLiveness), string(mesh.ProbeReadiness)}

// Verdicts returns the verdicts of a proxy's probes, nil if its agent has not reported them in its current session: it
// is disconnected, or too old. Times are whole seconds, so that the replicas of the control plane rarely differ.
func (s *Server) Verdicts(id mesh.ID) *adminv1.Verdicts {
	session, open := s.sessions.Order(id)
	if !open {
		return nil
	}
	m, reported := s.observed.VerdictsOf(id, session)
	if m == nil {
		return nil
	}
	all := &adminv1.Verdicts{LeftOut: m.GetLeftOut()}
	for _, p := range m.GetProbes() {
		one := &adminv1.ProbeVerdicts{
			Container: p.GetContainer(), Inbound: p.GetInbound(), Probe: p.GetProbe(), Total: p.GetTotal(),
			Reason: p.GetReason(),
		}
		for _, c := range p.GetChanges() {
			at := reported.Add(-c.GetAgo().AsDuration()).Truncate(time.Second)
			one.Changes = append(one.Changes, &adminv1.VerdictChange{At: timestamppb.New(at), Verdict: c.GetVerdict().Word()})
		}
		all.Probes = append(all.Probes, one)
	}
	slices.SortStableFunc(all.Probes, func(a, b *adminv1.ProbeVerdicts) int {
		return cmp.Or(cmp.Compare(a.GetContainer(), b.GetContainer()), cmp.Compare(a.GetInbound(), b.GetInbound()),
			cmp.Compare(slices.Index(probeOrder, a.GetProbe()), slices.Index(probeOrder, b.GetProbe())))
	})
	return all
}
