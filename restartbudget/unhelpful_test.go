package restartbudget

import (
	"testing"
	"time"
)

// fail makes pods, which request a restart, be granted one, restart and fail again without having passed.
func (c *cluster) fail(pods ...string) Result {
	c.t.Helper()
	for _, name := range pods {
		c.stop(name)
		c.ask(name)
		if g := grantOf(c.t, c.decide(), name); g.Outcome != Open {
			c.t.Fatalf("%s has no open grant", name)
		}
		c.restart(name)
		c.setReady(true, name)
		c.wait(time.Second)
		c.decide()
		c.ask(name)
	}
	return c.decide()
}

// After a rollout with a wrong path, each container fails again, and its pod is Ready at once. No third container
// restarts.
func TestBadPathStopsAfterTwo(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 10)
	pods := []string{"web-0", "web-1", "web-2", "web-3", "web-4", "web-5", "web-6", "web-7", "web-8", "web-9"}
	c.ask(pods...)
	restarts := 0
	follow := func() {
		for _, d := range c.decide().Decisions {
			if d.Reason == ReasonGranted {
				restarts++
				_, p := c.in.find(d.Request.Workload, d.Request.PodUID)
				c.restart(p.Name)
				c.setReady(true, p.Name)
			}
		}
		c.wait(5 * time.Second)
	}
	for range 20 {
		follow()
		follow() // the pods are Ready, but were not checked yet
		c.in.Requests = nil
		c.ask(pods...)
	}
	if restarts != 2 {
		t.Errorf("%d containers have restarted, want two", restarts)
	}
}

// A container that is starting fails at first. That is not taken for an unhelpful restart, and no other restart is
// granted, until its check has failed for as long as the kubelet would allow.
func TestStartIsNoFailure(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 1)
	c.app("web-0").Patience = 10 * time.Second
	for _, helps := range []bool{true, false} {
		c.ask("web-0")
		c.want("web-0 granted")
		c.restart("web-0")
		c.setReady(true, "web-0")
		c.wait(time.Second)
		c.in.Requests = nil
		c.ask("web-0")
		c.want("web-0 in_progress")
		c.wait(9 * time.Second)
		c.want("web-0 in_progress")
		if helps {
			c.pass("web-0")
			c.want()
			continue
		}
		c.wait(time.Second)
		r := c.want("web-0 granted")
		c.wantChanged(r, map[string]Outcome{"web-0": Unhelpful})
	}
}

func TestRestartsThatDoNotHelp(t *testing.T) {
	tests := map[string]struct {
		happens func(c *cluster, web *Workload)
		waits   bool
	}{
		"none": {func(*cluster, *Workload) {}, false},
		"one":  {func(c *cluster, _ *Workload) { c.fail("web-0") }, false},
		"two": {func(c *cluster, _ *Workload) {
			r := c.fail("web-0", "web-1")
			c.wantChanged(r, map[string]Outcome{"web-1": Unhelpful})
		}, true},
		"two of one container": {func(c *cluster, _ *Workload) { c.fail("web-0", "web-0") }, true},
		"one that helped between them": {func(c *cluster, _ *Workload) {
			c.fail("web-0")
			c.ask("web-1")
			c.decide()
			c.restart("web-1")
			c.setReady(true, "web-1")
			c.pass("web-1")
			c.fail("web-2")
		}, false},
		"two, and one helps that was granted before": {func(c *cluster, _ *Workload) {
			c.ask("web-2")
			c.fail("web-0", "web-1")
			c.restart("web-2")
			c.setReady(true, "web-2")
			c.pass("web-2")
		}, true},
		"passed once, failed later": {func(c *cluster, _ *Workload) {
			c.fail("web-0")
			c.ask("web-1")
			c.decide()
			c.restart("web-1")
			c.setReady(true, "web-1")
			c.pass("web-1")
			c.ask("web-1")
		}, false},
		"crashed since": {func(c *cluster, _ *Workload) {
			c.fail("web-0")
			c.ask("web-1")
			c.decide()
			c.restart("web-1")
			c.restart("web-1")
			c.setReady(true, "web-1")
			c.ask("web-1")
			c.decide()
		}, true},
		"two, and the template changes": {func(c *cluster, web *Workload) {
			c.fail("web-0", "web-1")
			for _, pod := range web.Pods {
				pod.Template = "t2"
			}
		}, false},
		"two, and the template changes and comes back": {func(c *cluster, web *Workload) {
			c.fail("web-0", "web-1")
			for _, template := range []string{"t2", "t1"} {
				for _, pod := range web.Pods {
					pod.Template = template
				}
				c.decide()
			}
		}, false},
		"two, and other pods have another template": {func(c *cluster, web *Workload) {
			c.fail("web-0", "web-1")
			web.Pods["web-2"].Template, web.Pods["web-3"].Template = "t2", "t2"
		}, true},
		"two, and the workload is deleted and made again": {func(c *cluster, web *Workload) {
			c.fail("web-0", "web-1")
			delete(c.in.Workloads, deployment("web"))
			c.in.Requests = nil
			c.decide()
			c.in.Workloads[deployment("web")] = web
		}, false},
		"two, and released": {func(c *cluster, _ *Workload) {
			c.fail("web-0", "web-1")
			c.state.Release(deployment("web"))
		}, false},
		"two, and another workload is released": {func(c *cluster, _ *Workload) {
			c.fail("web-0", "web-1")
			c.state.Release(deployment("api"))
		}, true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			web := c.addDeployment("web", 5)
			web.Budgets = []Budget{{Limit: Limit{Name: "a", MaxUnavailable: pods(5)}}} // so the next restart is granted at once
			tc.happens(c, web)
			c.in.Requests = nil
			c.ask("web-4")
			want := "web-4 granted"
			if tc.waits {
				want = "web-4 unhelpful"
			}
			c.want(want)
			c.addDeployment("api", 1)
			c.in.Requests = nil
			c.ask("api-0")
			c.want("api-0 granted")
		})
	}
}

// A new leader may have reports of agents from before the grants of the previous leader. They say nothing about those
// restarts.
func TestOldReportJudgesNoRestart(t *testing.T) {
	tests := map[string]struct {
		reported time.Duration // when the agent reported, relative to the grant
		passes   bool
		want     Outcome
	}{
		"fails, and was said before":  {-time.Second, false, Spent},
		"fails, and was said since":   {time.Second, false, Unhelpful},
		"passes, and was said before": {-time.Second, true, Spent},
		"passes, and was said since":  {time.Second, true, Helped},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addDeployment("web", 4)
			c.restart("web-0")
			c.setReady(true, "web-0")
			g := opened("web-0", "app")
			g.Spent, g.Outcome = start, Spent
			c.wait(10 * time.Second)
			c.state = Restore(c.now, []Grant{g})
			_, pod := c.pod("web-0")
			pod.Reported = start.Add(tc.reported)
			if c.ask("web-0"); tc.passes {
				c.pass("web-0")
			}
			r, judged := c.decide(), map[string]Outcome{}
			if tc.want != Spent {
				judged["web-0"] = tc.want
			}
			c.wantChanged(r, judged)
			for _, d := range r.Decisions {
				if waits := d.Reason == ReasonInProgress; waits != (tc.want == Spent) {
					t.Errorf("the decision on its next restart is %s", d.Reason)
				}
			}
			c.wait(CatchUp)
			if n := len(c.decide().Changed); (n == 1) != (tc.want == Spent) {
				t.Errorf("after a minute %d restarts are judged", n)
			}
		})
	}
}
