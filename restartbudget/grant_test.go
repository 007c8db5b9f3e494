package restartbudget

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// outcomes returns the outcomes of the changed grants, by pod.
func outcomes(r Result) map[string]Outcome {
	all := map[string]Outcome{}
	for _, g := range r.Changed {
		if _, twice := all[g.ID.PodUID]; twice {
			panic("a grant of " + g.ID.PodUID + " is returned twice")
		}
		all[g.ID.PodUID] = g.Outcome
	}
	return all
}

func (c *cluster) wantChanged(r Result, want map[string]Outcome) {
	c.t.Helper()
	if diff := cmp.Diff(want, outcomes(r)); diff != "" {
		c.t.Errorf("changed grants (-want +got):\n%s", diff)
	}
}

func TestGrantOfAContainer(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.app("web-0").Restarts = 3
	c.ask("web-0", "web-1")
	r := c.want("web-0 granted", "web-1 in_progress")
	first := grantOf(t, r, "web-0")
	want := Grant{
		ID: GrantID{ContainerKey{"web-0", "app"}, 3, 0}, Workload: deployment("web"), Node: "n0", Template: "t1", Granted: start,
	}
	if diff := cmp.Diff(want, first); diff != "" {
		t.Errorf("grant (-want +got):\n%s", diff)
	}
	c.wait(5 * time.Second)
	if again := grantOf(t, c.want("web-0 granted_before", "web-1 in_progress"), "web-0"); again != first {
		t.Errorf("asking again returns %+v, want the same", again)
	}

	refunded, ok := c.state.Refund(c.now, first.ID)
	if want := c.now; !ok || refunded.Outcome != Refunded || refunded.Ended != want {
		t.Errorf("Refund() = %+v, %t", refunded, ok)
	}
	if _, ok := c.state.Refund(c.now, first.ID); ok {
		t.Error("a grant is refunded twice")
	}
	second := grantOf(t, c.want("web-0 granted", "web-1 in_progress"), "web-0")
	if second.ID != (GrantID{first.ID.ContainerKey, 3, 1}) {
		t.Errorf("next try is %+v", second.ID)
	}
	if _, ok := c.state.Refund(c.now, first.ID); ok {
		t.Error("the refund of an earlier try ends the next one")
	}

	c.restart("web-0")
	c.wantChanged(c.want("web-1 in_progress"), map[string]Outcome{"web-0": Spent})
	if _, ok := c.state.Refund(c.now, second.ID); ok {
		t.Error("a restart that was seen is refunded")
	}
	c.setReady(true, "web-0")
	c.wantChanged(c.want("web-1 in_progress"), map[string]Outcome{}) // its check may fail again
	c.pass("web-0")
	r = c.want("web-1 granted")
	c.wantChanged(r, map[string]Outcome{"web-0": Helped})
	if r.Changed[0].Ended != c.now {
		t.Errorf("a restart ended at %s, want now", r.Changed[0].Ended)
	}
	c.wantChanged(c.want("web-1 granted_before"), map[string]Outcome{})
}

func TestRestartsInProgress(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.ask("web-0", "web-1")
	r := c.want("web-0 granted", "web-1 in_progress")
	if diff := cmp.Diff(map[string]int{"web-0": 1}, c.state.InProgress()); diff != "" {
		t.Errorf("InProgress() (-want +got):\n%s", diff)
	}
	c.state.Refund(c.now, grantOf(t, r, "web-0").ID)
	if all := c.state.InProgress(); len(all) > 0 {
		t.Errorf("InProgress() = %v after the refund, want none", all)
	}
}

func TestInProgressEnds(t *testing.T) {
	tests := map[string]struct {
		happens func(c *cluster, id GrantID)
		ends    bool
	}{
		"nothing":                    {func(*cluster, GrantID) {}, false},
		"the pod is Ready unchanged": {func(c *cluster, _ GrantID) { c.setReady(true, "web-0") }, false},
		"restarted":                  {func(c *cluster, _ GrantID) { c.restart("web-0") }, false},
		"restarted and Ready":        {func(c *cluster, _ GrantID) { c.restart("web-0"); c.setReady(true, "web-0") }, false},
		"restarted, and it passes":   {func(c *cluster, _ GrantID) { c.restart("web-0"); c.setReady(false, "web-0"); c.pass("web-0") }, false},
		"restarted, Ready, passes":   {func(c *cluster, _ GrantID) { c.restart("web-0"); c.setReady(true, "web-0"); c.pass("web-0") }, true},
		"just before ten minutes":    {func(c *cluster, _ GrantID) { c.restart("web-0"); c.wait(10*time.Minute - 1) }, false},
		"restarted, ten minutes":     {func(c *cluster, _ GrantID) { c.restart("web-0"); c.wait(10 * time.Minute) }, true},
		"not restarted, ten minutes": {func(c *cluster, _ GrantID) { c.wait(10 * time.Minute) }, true},
		"refunded":                   {func(c *cluster, id GrantID) { c.state.Refund(c.now, id) }, true},
		"another container ID":       {func(c *cluster, id GrantID) { c.state.Restarted(c.now, id) }, true},
		"another container ID, unready": {func(c *cluster, id GrantID) {
			c.state.Restarted(c.now, id)
			c.setReady(false, "web-0")
		}, false},
		"the pod is gone": {func(c *cluster, _ GrantID) {
			id, _ := c.pod("web-0")
			delete(c.in.Workloads[id].Pods, "web-0")
		}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			web := c.addDeployment("web", 4)
			c.ask("web-0", "web-1")
			c.setReady(false, "web-1") // so that only its own limit delays it
			web.Replicas = 3
			id := grantOf(t, c.want("web-0 granted", "web-1 in_progress"), "web-0").ID
			c.stop("web-0")
			tc.happens(c, id)
			want := "web-1 in_progress"
			if tc.ends {
				want = "web-1 granted"
			}
			c.want(want)
		})
	}
}

func TestContainerInProgressRestartsAgainInItsPlace(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.ask("web-0", "web-1")
	c.want("web-0 granted", "web-1 in_progress")
	c.restart("web-0")
	c.wait(5 * time.Minute)
	c.ask("web-0")
	c.want("web-1 in_progress", "web-0 granted")
	c.wait(6 * time.Minute)
	c.want("web-1 in_progress", "web-0 granted_before")
}

func TestAllThatHappenedSinceIsOneChange(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.ask("web-0")
	c.want("web-0 granted")
	c.restart("web-0")
	c.setReady(true, "web-0")
	c.pass("web-0")
	r := c.want()
	c.wantChanged(r, map[string]Outcome{"web-0": Helped})
	if g := r.Changed[0]; g.Spent != c.now || g.Ended != c.now || g.Judged != c.now {
		t.Errorf("changed %+v, want all times now", g)
	}
}

func TestRestartWithoutACountIsNotJudged(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.ask("web-0")
	id := grantOf(t, c.want("web-0 granted"), "web-0").ID
	if g, ok := c.state.Restarted(c.now, id); !ok || g.Outcome != Spent || g.Spent != c.now {
		t.Errorf("Restarted() = %+v, %t", g, ok)
	}
	if _, ok := c.state.Restarted(c.now, id); ok {
		t.Error("a container restarts twice with one grant")
	}
	r := c.want("web-0 granted")
	c.wantChanged(r, map[string]Outcome{"web-0": Spent})
	if try := grantOf(t, r, "web-0").ID.Try; try != 1 {
		t.Errorf("try %d, want 1", try)
	}
}

func TestRestartCountThatFalls(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.app("web-0").Restarts = 3
	c.ask("web-0")
	c.want("web-0 granted")
	c.app("web-0").Restarts = 0
	c.stop("web-0")
	c.ask("web-0")
	if id := grantOf(t, c.want("web-0 granted"), "web-0").ID; id.Restarts != 0 {
		t.Errorf("the grant is %+v, want one for restart count 0", id)
	}
}

func TestGrantsThatWereNotUsedExpire(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.ask("web-0")
	c.want("web-0 granted")
	c.wait(InProgress)
	r := c.want("web-0 granted")
	c.wantChanged(r, map[string]Outcome{"web-0": Refunded})
	if try := grantOf(t, r, "web-0").ID.Try; try != 1 {
		t.Errorf("try %d, want 1", try)
	}
}
