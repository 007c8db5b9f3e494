package restartbudget

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// failing adds Deployments of a namespace, each with that many pods, which all request a restart.
func (c *cluster) failing(namespace string, deployments, pods int) {
	c.t.Helper()
	for i := range deployments {
		id := WorkloadID{"Deployment", namespace, fmt.Sprint(namespace, i)}
		c.add(id, pods).Budgets = []Budget{{Limit: Limit{Name: namespace + "/all", MaxUnavailable: percent(100)}}}
		for k := range pods {
			c.ask(fmt.Sprint(id.Name, "-", k))
		}
	}
}

// byReason returns the number of decisions by "namespace reason".
func byReason(r Result) map[string]int {
	n := map[string]int{}
	for _, d := range r.Decisions {
		n[d.Request.Workload.Namespace+" "+string(d.Reason)]++
	}
	return n
}

// One namespace contributes at most half of the limit that opens the breaker. Beyond that, the breaker is open for this
// namespace only.
func TestBreakerShares(t *testing.T) {
	type fails struct{ deployments, pods int }
	tests := map[string]struct {
		guarded int
		failing map[string]fails
		open    bool
		alone   NamespaceHeld
	}{
		"86 pods of one tenant":                    {200, map[string]fails{"bad": {2 * 43, 1}, "good": {1, 2}}, false, NamespaceHeld{"bad", 86, 86}},
		"all pods, and there is no other":          {86, map[string]fails{"bad": {43, 2}}, true, NamespaceHeld{}},
		"half of it each":                          {100, map[string]fails{"a": {3, 5}, "b": {3, 5}}, true, NamespaceHeld{}},
		"one has too little for the other":         {100, map[string]fails{"a": {3, 10}, "b": {7, 2}}, false, NamespaceHeld{"a", 30, 3}},
		"one of ten has its half, the others some": {100, map[string]fails{"a": {3, 10}, "b": {1, 5}, "c": {1, 5}, "d": {1, 5}}, true, NamespaceHeld{}},
		"many with little each":                    {100, map[string]fails{"a": {1, 6}, "b": {1, 6}, "c": {1, 6}, "d": {1, 6}, "e": {1, 6}}, true, NamespaceHeld{}},
		"one workload of a namespace, and others":  {100, map[string]fails{"a": {1, 40}, "b": {2, 1}}, false, NamespaceHeld{}},
		"too little in all":                        {100, map[string]fails{"a": {3, 5}, "b": {2, 7}}, false, NamespaceHeld{}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.in.Guarded = tc.guarded
			held := map[string]bool{}
			for namespace, f := range tc.failing {
				c.failing(namespace, f.deployments, f.pods)
				held[namespace] = tc.open
			}
			if tc.alone.Held > 0 {
				held[tc.alone.Name] = true
			}
			r := c.decide()
			if r.Breaker.Alone != tc.alone || r.Breaker.Open != tc.open || r.Breaker.Changed != (tc.open || tc.alone.Held > 0) {
				t.Errorf("Breaker %+v, want open: %t, for %+v alone", r.Breaker, tc.open, tc.alone)
			}
			for _, d := range r.Decisions {
				if namespace := d.Request.Workload.Namespace; (d.Reason == ReasonBreaker) != held[namespace] || d.Reason != ReasonBreaker && d.Reason != ReasonGranted {
					t.Errorf("%s: %s: %s", namespace, d.Reason, d)
				}
			}
			if r := c.decide(); r.Breaker.Changed {
				t.Error("it has changed once more")
			}
		})
	}
}

func TestBreakerOfANamespaceSaysWhy(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded = 20
	c.failing("bad", 3, 2)
	c.failing("good", 1, 1)
	for _, d := range c.decide().Decisions {
		const why = "the breaker is open: within a minute 7 of 20 guarded containers failed, and 6 of them, of 3 workloads, in namespace bad: it is open only for that namespace"
		if d.Request.Workload.Namespace == "bad" && d.String() != why {
			t.Errorf("%s, want %s", d, why)
		}
	}
	c.in.Requests = nil
	c.wait(time.Minute)
	if r := c.decide(); !r.Breaker.Changed || r.Breaker.Alone.Held > 0 {
		t.Errorf("Breaker %+v, want one that has closed", r.Breaker)
	}
}

// A limit for all restarts is shared: a namespace that is alone may use all of it. A namespace that comes later is
// served before one that has had more restarts.
func TestLimitsAreShared(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded, c.in.Settings.PerMinute = 10_000, 10
	c.failing("first", 1, 100)
	if got := byReason(c.decide()); got["first granted"] != 10 {
		t.Fatalf("alone: %v, want all 10", got)
	}
	c.wait(time.Second) // the first namespace has the older requests
	c.failing("late", 1, 3)
	c.failing("other", 1, 100)
	if got := byReason(c.decide()); got["late per_minute"] != 3 {
		t.Fatalf("while nothing is left: %v", got)
	}
	c.wait(time.Minute)
	if diff := cmp.Diff(map[string]int{
		"first granted": 4, "first granted_before": 10, "first per_minute": 86, "late granted": 3, "other granted": 3, "other per_minute": 97,
	}, byReason(c.decide())); diff != "" {
		t.Errorf("a minute later (-want +got):\n%s", diff)
	}
}

// With a limit so small that no namespace has a restart in the last minute, namespaces take turns: the one with the
// older requests is not always first.
func TestSmallLimitsAreShared(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded, c.in.Settings.PerMinute = 10_000, 1
	c.failing("crowd", 1, 100)
	c.decide()
	c.wait(time.Second)
	c.failing("late", 1, 100)
	for i, want := range []string{"late", "crowd", "late", "crowd"} {
		if i == 2 { // another leader continues
			var grants []Grant
			for _, rec := range c.state.last {
				grants = append(grants, rec.Grant)
			}
			c.state = Restore(c.now, grants)
			c.wait(CatchUp)
		}
		c.wait(time.Minute)
		if got := byReason(c.decide()); got[want+" granted"] != 1 {
			t.Errorf("minute %d: %v, want a grant for %s", i+1, got, want)
		}
	}
}

// The limit of a node is shared, too.
func TestLimitOfANodeIsShared(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded, c.in.Settings.PerNodePerMinute = 10_000, 2
	c.failing("first", 20, 1) // all on n0
	c.wait(time.Second)
	c.failing("late", 1, 1)
	if diff := cmp.Diff(map[string]int{"first granted": 1, "first per_node_per_minute": 19, "late granted": 1}, byReason(c.decide())); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Decisions are in the order of their requests, whichever namespace's turn it was.
func TestDecisionsAreInTheOrderOfRequests(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded, c.in.Settings.PerMinute = 10_000, 2
	c.failing("a", 1, 3)
	c.wait(time.Second)
	c.failing("b", 1, 1)
	var got []string
	for _, d := range c.decide().Decisions {
		got = append(got, d.Request.PodUID+" "+string(d.Reason))
	}
	if want := "a0-0 granted, a0-1 per_minute, a0-2 per_minute, b0-0 granted"; strings.Join(got, ", ") != want {
		t.Errorf("decisions %q, want %s", got, want)
	}
}
