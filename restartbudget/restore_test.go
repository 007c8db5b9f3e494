package restartbudget

import (
	"slices"
	"testing"
	"time"
)

func TestRestore(t *testing.T) {
	ago := func(d time.Duration) time.Time { return start.Add(-d) }
	spent := func(granted, ended time.Time) Grant {
		g := opened("web-0", "app")
		g.Granted, g.Spent, g.Ended, g.Outcome = granted, granted, ended, Helped
		if ended.IsZero() {
			g.Outcome = Spent
		}
		return g
	}
	refunded := opened("web-0", "app")
	refunded.Outcome, refunded.Ended = Refunded, start
	old := opened("web-0", "app")
	old.Granted = ago(time.Hour)
	tests := map[string]struct {
		grant     Grant
		perMinute int
		want      Reason // reason for another pod of the workload
	}{
		"in progress":                                  {opened("web-0", "app"), 0, ReasonInProgress},
		"in progress since long, by a clock":           {old, 0, ReasonInProgress},
		"restarted, not Ready since":                   {spent(ago(time.Hour), time.Time{}), 0, ReasonInProgress},
		"ended":                                        {spent(ago(time.Second), start), 0, ReasonGranted},
		"refunded":                                     {refunded, 1, ReasonGranted},
		"ended within the minute":                      {spent(ago(59*time.Second), start), 1, ReasonGlobalLimit},
		"ended, granted a minute ago":                  {spent(ago(time.Minute), start), 1, ReasonGranted},
		"ended, granted in the future":                 {spent(start.Add(time.Hour), start), 1, ReasonGlobalLimit},
		"in progress since long, and for the limit":    {old, 1, ReasonGlobalLimit},
		"ended in the future, without limits it is so": {spent(start.Add(time.Hour), start.Add(time.Hour)), 0, ReasonGranted},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.addDeployment("web", 4)
			if !tc.grant.Spent.IsZero() {
				c.restart("web-0")
			}
			c.in.Settings.PerMinute = tc.perMinute
			c.state = Restore(c.now, []Grant{tc.grant})
			c.setReady(false, "web-1")
			c.ask("web-1")
			c.want("web-1 " + string(tc.want))
			if tc.want != ReasonGlobalLimit {
				return
			}
			c.in.Settings.PerMinute = 2 // otherwise its own restart would use up the limit again
			c.wait(time.Minute)
			want := ReasonGranted
			if tc.grant.Ended.IsZero() {
				want = ReasonInProgress
			}
			c.want("web-1 " + string(want))
		})
	}
}

func TestRestoredGrantIsTheSame(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 4)
	c.ask("web-0")
	first := grantOf(t, c.want("web-0 granted"), "web-0")
	refunded, _ := c.state.Refund(c.now, first.ID)
	second := grantOf(t, c.want("web-0 granted"), "web-0")
	for _, grants := range [][]Grant{{refunded, second}, {second, refunded}} {
		before := slices.Clone(grants)
		c.state = Restore(c.now, grants)
		if !slices.Equal(grants, before) {
			t.Error("the caller's grants are in another order")
		}
		if got := grantOf(t, c.want("web-0 granted_before"), "web-0"); got != second {
			t.Errorf("a new leader returns %+v, want %+v", got, second)
		}
	}
}

func TestRestoredWorkloadWaits(t *testing.T) {
	c := newCluster(t)
	c.addDeployment("web", 5)
	var grants []Grant
	for i, name := range []string{"web-0", "web-1"} {
		g := opened(name, "app")
		g.Outcome, g.Granted, g.Ended, g.Judged = Unhelpful, start.Add(-time.Hour), start, start.Add(time.Duration(i))
		grants = append(grants, g)
	}
	helped := opened("web-2", "app")
	helped.Outcome, helped.Granted, helped.Ended = Helped, start.Add(-time.Hour), start
	judgedAt := func(at time.Time) Grant {
		g := helped
		g.Judged = at
		return g
	}
	released := slices.Clone(grants)
	released[0].Outcome, released[1].Outcome = Released, Released
	tests := map[string]struct {
		grants []Grant
		want   Reason
	}{
		"one":                         {grants[:1], ReasonGranted},
		"two":                         {grants, ReasonUnhelpful},
		"two, and one helped before":  {append(slices.Clone(grants), judgedAt(start.Add(-1))), ReasonUnhelpful},
		"one helped between them":     {append(slices.Clone(grants), judgedAt(start)), ReasonGranted},
		"two, and one helped later":   {append(slices.Clone(grants), judgedAt(start.Add(2))), ReasonUnhelpful},
		"two that have been released": {released, ReasonGranted},
	}
	for name, tc := range tests {
		t.Run(name, func(*testing.T) {
			c.state = Restore(c.now, tc.grants)
			c.in.Requests = nil
			c.ask("web-4")
			c.want("web-4 " + string(tc.want))
		})
	}
}

// A new leader's state of pods may be older than the grants of the previous leader: a missing pod, and its template,
// may still exist.
func TestRestoredGrantOfAPodNotSeenYet(t *testing.T) {
	c := newCluster(t)
	web, bad := c.addDeployment("web", 2), c.addDeployment("bad", 3)
	var grants []Grant
	for _, name := range []string{"bad-0", "bad-1"} {
		g := opened(name, "app")
		g.Workload = deployment("bad")
		g.Outcome, g.Granted, g.Ended, g.Judged = Unhelpful, start.Add(-time.Hour), start, start
		grants = append(grants, g)
	}
	grants = append(grants, opened("web-0", "app"))
	unseen := func(d time.Duration) {
		c.state = Restore(c.now, grants)
		webPods, badPods := web.Pods, bad.Pods
		web.Pods, bad.Pods, c.in.Requests = nil, nil, nil
		c.want()
		c.wait(d)
		c.want()
		web.Pods, bad.Pods = webPods, badPods
	}
	unseen(CatchUp - time.Second)
	c.ask("bad-2", "web-1")
	c.want("bad-2 unhelpful", "web-1 in_progress")
	unseen(CatchUp)
	c.ask("bad-2", "web-1")
	c.want("bad-2 granted", "web-1 granted")
}
