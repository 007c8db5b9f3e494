package agentv1

import (
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"
)

// ReportedLiveness is a Liveness with the time of its receipt, to which its durations are relative. The report must not
// be changed.
type ReportedLiveness struct {
	// Report is nil before the first report.
	Report *Liveness
	At     time.Time
}

// Since returns since when a probe of the report fails, by the clock of this process.
func (l ReportedLiveness) Since(h *HeldLiveness) time.Time {
	return l.At.Add(-h.GetFailing().AsDuration())
}

// AsOf returns the report as the agent would send it now.
func (l ReportedLiveness) AsOf(now time.Time) *Liveness {
	m := &Liveness{Passing: l.Report.GetPassing(), Unused: l.Report.GetUnused()}
	for _, h := range l.Report.GetHeld() {
		m.Held = append(m.Held, &HeldLiveness{
			Container: h.GetContainer(), Failing: durationpb.New(now.Sub(l.Since(h))),
			Reason: h.GetReason(), Grant: h.GetGrant(), Told: h.GetTold(),
		})
	}
	return m
}

// SameAs compares all but the times, since the transport delay of messages differs.
func (l ReportedLiveness) SameAs(other ReportedLiveness) bool {
	a, b := l.Report, other.Report
	return slices.Equal(a.GetPassing(), b.GetPassing()) && slices.Equal(a.GetUnused(), b.GetUnused()) &&
		slices.EqualFunc(a.GetHeld(), b.GetHeld(), func(a, b *HeldLiveness) bool {
			return a.GetContainer() == b.GetContainer() && a.GetReason() == b.GetReason() &&
				a.GetGrant() == b.GetGrant() && a.GetTold() == b.GetTold()
		})
}

// AnyHeld reports whether a failure is held, or the container is about to restart by its grant.
func (m *Liveness) AnyHeld() bool {
	return slices.ContainsFunc(m.GetHeld(), func(h *HeldLiveness) bool { return !h.GetTold() || h.GetGrant() != "" })
}

// IsEmpty reports whether the report has no entries.
func (m *Liveness) IsEmpty() bool {
	return len(m.GetHeld())+len(m.GetPassing())+len(m.GetUnused()) == 0
}
