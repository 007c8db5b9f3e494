package restartbudget

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestStanding shows that Standing returns what the rules count: if the workload has no restart left, the next one must
// wait.
func TestStanding(t *testing.T) {
	c := newCluster(t)
	web := c.addDeployment("web", 8)
	c.setReady(false, "web-7")
	restarting := map[string]bool{}
	want := Standing{Replicas: 8, Available: 7, MaxUnavailable: 2, Source: "the default, 25 %"}
	if diff := cmp.Diff(want, web.Standing(deployment("web"), restarting)); diff != "" {
		t.Errorf("Standing() (-want +got):\n%s", diff)
	}
	c.ask("web-0", "web-1")
	c.want("web-0 granted", "web-1 unavailable")
	for _, d := range c.decide().Decisions {
		if d.Verdict == Granted {
			restarting[d.Request.PodUID] = true
		}
	}
	want.Available = 6
	if diff := cmp.Diff(want, web.Standing(deployment("web"), restarting)); diff != "" {
		t.Errorf("Standing() with one that restarts (-want +got):\n%s", diff)
	}
}

// TestReleasedGrantsStayReleased has an operator release a workload before the last unhelpful restart has ended: the
// status that is written then does not undo the release for a later leader.
func TestReleasedGrantsStayReleased(t *testing.T) {
	c := newCluster(t)
	web := c.addDeployment("web", 5)
	web.Budgets = []Budget{{Limit: Limit{Name: "a", MaxUnavailable: pods(5)}}}
	c.fail("web-0")
	c.stop("web-1")
	c.ask("web-1")
	c.decide()
	c.restart("web-1")
	c.decide()
	c.ask("web-1") // it fails again before its pod is Ready
	c.wantChanged(c.decide(), map[string]Outcome{"web-1": Unhelpful})
	if !c.state.Waits(deployment("web"), "t1") || c.state.Waits(deployment("web"), "t2") || c.state.Waits(deployment("api"), "t1") {
		t.Error("Waits() mixes up workloads or templates")
	}
	c.state.Release(deployment("web"))
	if c.state.Waits(deployment("web"), "t1") {
		t.Error("it waits after its release")
	}
	c.in.Requests = nil
	c.setReady(true, "web-1")
	changed := c.decide().Changed
	if len(changed) != 1 || changed[0].Outcome != Released || changed[0].Ended.IsZero() {
		t.Errorf("what is written when the restart ends: %+v", changed)
	}
}
