package restartbudget

import (
	"testing"
	"time"
)

// TestOrderOfRules has a request that every rule forbids, and lifts one rule after the other.
func TestOrderOfRules(t *testing.T) {
	c := newCluster(t)
	web := c.addDeployment("web", 3)
	asks, other := web.Pods["web-0"], web.Pods["web-1"]
	web.Budgets = []Budget{{Limit: Limit{Name: "shop/web", MaxUnavailable: pods(0)}, PerMinute: 1}}
	web.Replicas = 5
	asks.Suspended, asks.Native, asks.Containers[0].Name, asks.Containers[0].Restarts = true, true, "other", 4
	c.in.Settings = Settings{
		Mode: Off, PerMinute: 1, PerNodePerMinute: 1, Blacklist: Blacklist{Images: []string{"registry:5000/shop/app"}}, Breaker: BreakerLimits{1, 1},
	}
	c.in.Guarded, c.in.Unread, c.in.Frozen = 3, "pods: connection refused", "most nodes of zone a are not seen (one-zone)"
	c.in.Requests = []Request{{ContainerKey: ContainerKey{"web-0", "app"}, Workload: deployment("web"), Restarts: 5, Since: start}}
	unhelpful := func(pod string) Grant {
		g := opened(pod, "app")
		g.Outcome, g.Granted, g.Spent, g.Ended, g.Judged = Unhelpful, start.Add(-time.Hour), start, start, start
		return g
	}
	c.state = Restore(c.now, []Grant{opened("web-1", "app"), unhelpful("web-2"), unhelpful("web-3")})
	steps := []struct {
		reason Reason
		lift   func()
	}{
		{ReasonOff, func() { c.in.Settings.Mode = Enforce }},
		{ReasonUnknown, func() { asks.Containers[0].Name = "app" }},
		{ReasonStale, func() { asks.Containers[0].Restarts = 5 }},
		{ReasonNative, func() { asks.Native = false }},
		{ReasonSuspended, func() { asks.Suspended = false }},
		{ReasonBlacklisted, func() { c.in.Settings.Blacklist = Blacklist{} }},
		{ReasonUnread, func() { c.in.Unread = "" }},
		{ReasonFrozen, func() { c.in.Frozen = "" }},
		{ReasonBreaker, func() { c.in.Settings.Breaker.Workloads = 2 }},
		{ReasonGlobalLimit, func() { c.in.Settings.PerMinute = 3 }},
		{ReasonNodeLimit, func() { c.in.Settings.PerNodePerMinute = 3 }},
		{ReasonBudgetLimit, func() { web.Budgets[0].PerMinute = 0 }},
		{ReasonUnhelpful, func() { c.state.Release(deployment("web")) }},
		{ReasonNoneAllowed, func() { web.Budgets[0].MaxUnavailable = pods(1) }},
		{ReasonInProgress, func() { web.Budgets[0].MaxUnavailable = pods(2) }},
		{ReasonUnavailable, func() { web.Replicas = 3 }},
		{ReasonGranted, func() { c.in.Settings.Breaker.Workloads, web.Budgets[0].MaxUnavailable = 1, pods(0) }},
		{ReasonGrantedBefore, func() { c.in.Settings.Blacklist.Namespaces = []string{"shop"} }},
		{ReasonBlacklisted, func() { asks.Suspended = true }},
		{ReasonSuspended, func() { asks.Native = true }},
		{ReasonNative, func() { c.in.Settings.Mode = Off }},
		{ReasonOff, func() {}},
	}
	for _, step := range steps {
		c.want("web-0 " + string(step.reason))
		step.lift()
	}
	if !other.Ready {
		t.Error("a pod of the input was changed")
	}
}

func TestOneContainerOfAPodAtATime(t *testing.T) {
	c := newCluster(t)
	web := c.addDeployment("web", 10)
	web.Budgets = []Budget{{Limit: Limit{Name: "shop/web", MaxUnavailable: pods(1)}}}
	pod := web.Pods["web-0"]
	pod.Containers = append(pod.Containers, Container{Name: "sidecar"})
	c.ask("web-0")
	c.in.Requests = append(c.in.Requests, Request{ContainerKey: ContainerKey{"web-0", "sidecar"}, Workload: deployment("web"), Since: c.now.Add(time.Second)})

	r := c.want("web-0 granted", "web-0 in_progress")
	web.Budgets[0].MaxUnavailable = pods(2)
	c.want("web-0 granted_before", "web-0 pod_busy")
	if r.Decisions[1].String() == "" {
		t.Error("no text")
	}
	c.state.Refund(c.now, grantOf(t, r, "web-0").ID)
	c.in.Requests = c.in.Requests[1:]
	c.want("web-0 granted")
}

func TestPodOfARestartIsNotAvailable(t *testing.T) {
	c := newCluster(t)
	web := c.addDeployment("web", 10)
	web.Pods["web-0"].Containers = append(web.Pods["web-0"].Containers, Container{Name: "sidecar"})
	c.setReady(false, "web-1")
	c.ask("web-0")
	c.in.Requests = append(c.in.Requests, Request{ContainerKey: ContainerKey{"web-0", "sidecar"}, Workload: deployment("web"), Since: c.now})
	for _, reason := range []string{"granted", "granted_before"} {
		c.want("web-0 "+reason, "web-0 pod_busy")
	}
}

func TestReadyPodsFitBesideAllThatIsUnavailable(t *testing.T) {
	tests := map[string]struct {
		change func(c *cluster, web *Workload)
		want   Reason
	}{
		"all is well": {func(*cluster, *Workload) {}, ReasonGranted},
		"one of two is not Ready": {func(c *cluster, _ *Workload) {
			c.setReady(false, "web-1")
		}, ReasonGranted},
		"two are not Ready": {func(c *cluster, _ *Workload) {
			c.setReady(false, "web-1", "web-2")
		}, ReasonUnavailable},
		"two are terminating": {func(_ *cluster, web *Workload) {
			web.Pods["web-1"].Terminating, web.Pods["web-2"].Terminating = true, true
		}, ReasonUnavailable},
		"two are gone": {func(_ *cluster, web *Workload) {
			delete(web.Pods, "web-1")
			delete(web.Pods, "web-2")
		}, ReasonUnavailable},
		"two more are desired": {func(_ *cluster, web *Workload) { web.Replicas += 2 }, ReasonUnavailable},
		"two that terminate are replaced": {func(_ *cluster, web *Workload) {
			web.Pods["web-1"].Terminating, web.Pods["web-2"].Terminating = true, true
			web.Pods["a"], web.Pods["b"] = &Pod{Ready: true}, &Pod{Ready: true}
		}, ReasonGranted},
		"a rollout has two more that are not Ready": {func(_ *cluster, web *Workload) {
			web.Pods["a"], web.Pods["b"] = &Pod{}, &Pod{}
		}, ReasonGranted},
		"one is not Ready, one is reserved": {func(c *cluster, _ *Workload) {
			c.setReady(false, "web-1")
			c.state = Restore(c.now, []Grant{opened("web-2", "app")})
		}, ReasonUnavailable},
		"the one that is not Ready is the one that is reserved": {func(c *cluster, _ *Workload) {
			c.setReady(false, "web-1")
			c.state = Restore(c.now, []Grant{opened("web-1", "app")})
		}, ReasonGranted},
		"it is not Ready, and many others": {func(c *cluster, _ *Workload) {
			c.setReady(false, "web-0", "web-1", "web-2", "web-3", "web-4")
		}, ReasonGranted},
		"it is not Ready, and two are reserved": {func(c *cluster, _ *Workload) {
			c.setReady(false, "web-0")
			c.state = Restore(c.now, []Grant{opened("web-1", "app"), opened("web-2", "app")})
		}, ReasonInProgress},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			web := c.addDeployment("web", 8)
			web.Budgets = []Budget{{Limit: Limit{Name: "shop/web", MaxUnavailable: pods(2)}}}
			tc.change(c, web)
			c.ask("web-0")
			c.want("web-0 " + string(tc.want))
		})
	}
}

func TestTenUnreadyPodsRestartTwoAtATime(t *testing.T) {
	c := newCluster(t)
	web := c.addDeployment("web", 10)
	var names []string
	for name := range web.Pods {
		names = append(names, name)
	}
	c.setReady(false, names...)
	c.ask(names...)
	for range 5 {
		var granted []string
		for _, d := range c.decide().Decisions {
			if d.Reason == ReasonGranted {
				granted = append(granted, d.Request.PodUID)
			}
		}
		if len(granted) != 2 {
			t.Fatalf("granted %q, want 2", granted)
		}
		c.restart(granted...)
		c.setReady(true, granted...)
		c.pass(granted...)
	}
	c.want()
}

func TestOldestFirst(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 3)
	c.addDeployment("api", 1)
	c.ask("web-2")
	c.wait(time.Second)
	c.ask("web-1", "web-0", "api-0")
	c.want("web-2 granted", "api-0 granted", "web-0 in_progress", "web-1 in_progress")
	c.restart("web-2")
	c.wait(time.Minute)
	c.ask("web-2")
	c.setReady(true, "web-2")
	c.pass("web-2")
	c.want("api-0 granted_before", "web-0 granted", "web-1 in_progress")
}

func TestLimitsPerMinute(t *testing.T) {
	tests := map[string]struct {
		limit  func(c *cluster)
		reason Reason
	}{
		"global":     {func(c *cluster) { c.in.Settings.PerMinute = 2 }, ReasonGlobalLimit},
		"node":       {func(c *cluster) { c.in.Settings.PerNodePerMinute = 2 }, ReasonNodeLimit},
		"the budget": {func(c *cluster) { setBudgets(c, Budget{Limit: Limit{Name: "shop/all"}, PerMinute: 2}) }, ReasonBudgetLimit},
		"the stricter budget": {func(c *cluster) {
			setBudgets(c, Budget{Limit: Limit{Name: "shop/all"}, PerMinute: 3}, Budget{Limit: Limit{Name: "shop/some"}, PerMinute: 2})
		}, ReasonBudgetLimit},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			for _, name := range []string{"a", "b", "c", "d"} {
				c.addDeployment(name, 1)
			}
			tc.limit(c)
			limited := " " + string(tc.reason)
			c.ask("a-0")
			c.want("a-0 granted")
			c.wait(30 * time.Second)
			c.ask("b-0", "c-0", "d-0")
			r := c.want("a-0 granted_before", "b-0 granted", "c-0"+limited, "d-0"+limited)
			if _, ok := c.state.Refund(c.now, grantOf(t, r, "b-0").ID); !ok {
				t.Error("Refund() = false")
			}
			c.stop("b-0")
			c.want("a-0 granted_before", "c-0 granted", "d-0"+limited)
			c.wait(30*time.Second - 1)
			c.want("a-0 granted_before", "c-0 granted_before", "d-0"+limited)
			c.wait(1)
			c.want("a-0 granted_before", "c-0 granted_before", "d-0 granted")
		})
	}
}

func setBudgets(c *cluster, budgets ...Budget) {
	for _, w := range c.in.Workloads {
		w.Budgets = budgets
	}
}

func TestNodesAndBudgetsAreLimitedOnTheirOwn(t *testing.T) {
	c := newCluster(t)
	c.in.Settings.PerNodePerMinute = 1
	for name, budget := range map[string]string{"a": "one", "b": "one", "c": "other"} {
		c.addDeployment(name, 2).Budgets = []Budget{{Limit: Limit{Name: budget}, PerMinute: 1}}
	}
	c.ask("a-0", "b-0", "b-1", "c-0", "c-1")
	c.want("a-0 granted", "b-0 per_node_per_minute", "b-1 budget_per_minute", "c-0 per_node_per_minute", "c-1 granted")
}

func TestDryRunDecidesAsEnforce(t *testing.T) {
	for _, mode := range []Mode{Enforce, DryRun} {
		t.Run(string(mode), func(t *testing.T) {
			c := newCluster(t)
			c.in.Settings.Mode = mode
			c.addDeployment("web", 8)
			c.ask("web-0", "web-1", "web-2")
			r := c.want("web-0 granted", "web-1 granted", "web-2 in_progress")
			for _, d := range r.Decisions {
				if want := mode == DryRun; d.DryRun != want || d.Grant != nil && d.Grant.DryRun != want {
					t.Errorf("DryRun of %v is not %t", d, want)
				}
			}
			c.want("web-0 granted_before", "web-1 granted_before", "web-2 in_progress")
		})
	}
}

func TestSimulatedGrantsEndWithTheSimulation(t *testing.T) {
	c := newCluster(t)
	c.in.Settings = Settings{Mode: DryRun, PerMinute: 1}
	c.addDeployment("web", 4)
	c.ask("web-0", "web-1")
	c.want("web-0 granted", "web-1 per_minute")
	c.in.Settings.Mode = Enforce
	r := c.want("web-0 granted", "web-1 per_minute")
	if g := grantOf(t, r, "web-0"); g.ID.Try != 1 || g.DryRun {
		t.Errorf("grant %+v, want a real one, the second try", g)
	}
	if len(r.Changed) != 1 || r.Changed[0].Outcome != Refunded || !r.Changed[0].DryRun {
		t.Errorf("changed %+v, want the simulated grant refunded", r.Changed)
	}
}
