package lists

import (
	"slices"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// probesRoom is the number of probes that still fit into an answer. Probes that succeed make room for others, of any
// proxy.
type probesRoom struct {
	left int
	// succeeding are the listed verdicts from which probes that succeed may still be removed.
	succeeding []*adminv1.Verdicts
}

// fit removes the probes of a proxy that do not fit, and makes room for the others. v may be nil.
func (r *probesRoom) fit(v *adminv1.Verdicts) *adminv1.Verdicts {
	if v == nil {
		return nil
	}
	if len(v.GetProbes()) > r.left {
		leaveOut(v, keepOthers(v))
	}
	for len(v.GetProbes()) > r.left && len(r.succeeding) > 0 {
		last := len(r.succeeding) - 1
		before := r.succeeding[last]
		r.succeeding = r.succeeding[:last]
		r.left += leaveOut(before, keepOthers(before))
	}
	leaveOut(v, v.GetProbes()[:min(len(v.GetProbes()), r.left)])
	r.left -= len(v.GetProbes())
	r.succeeding = append(r.succeeding, v)
	return v
}

// keepOthers returns the probes that do not succeed.
func keepOthers(v *adminv1.Verdicts) []*adminv1.ProbeVerdicts {
	return slices.DeleteFunc(slices.Clone(v.GetProbes()), func(p *adminv1.ProbeVerdicts) bool {
		n := len(p.GetChanges())
		return n > 0 && p.GetChanges()[n-1].GetVerdict() == agentv1.VerdictChange_SUCCESS.Word()
	})
}

// leaveOut removes the probes of v that are not in kept, counts them in LeftOut, and returns their number.
func leaveOut(v *adminv1.Verdicts, kept []*adminv1.ProbeVerdicts) int {
	n := len(v.GetProbes()) - len(kept)
	v.Probes, v.LeftOut = kept, v.GetLeftOut()+uint32(n)
	return n
}
