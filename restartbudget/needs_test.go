package restartbudget

import (
	"strings"
	"testing"
)

// reasons are all reasons, in the order of their declaration.
var reasons = []Reason{
	ReasonOff, ReasonUnknown, ReasonStale, ReasonSuspended, ReasonBlacklisted, ReasonGrantedBefore, ReasonBreaker, ReasonGlobalLimit, ReasonNodeLimit,
	ReasonBudgetLimit, ReasonUnhelpful, ReasonNoneAllowed, ReasonInProgress, ReasonUnavailable, ReasonPodBusy, ReasonGranted,
}

func TestEveryReasonSaysWhatItNeeds(t *testing.T) {
	for _, reason := range reasons {
		d := Decision{Request: Request{Workload: deployment("web")}, Cause: Cause{Reason: reason, Source: "the source"}}
		if d.Needs() == "" || d.String() == "" {
			t.Errorf("%s: needs %q, says %q", reason, d.Needs(), d)
		}
		d.DryRun = true
		if got := d.Needs(); !strings.Contains(got, "dry run") {
			t.Errorf("%s: in a dry run it needs %q", reason, got)
		}
	}
	d := Decision{Request: Request{Workload: deployment("web")}, Cause: Cause{Reason: ReasonUnhelpful, Count: 2}}
	if got, want := d.Needs(), "another pod template, or sondectl restarts release "+deployment("web").String(); got != want {
		t.Errorf("Needs() = %q, want %q", got, want)
	}
}
