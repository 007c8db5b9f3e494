package restartbudget

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestBreakerLimits(t *testing.T) {
	tests := map[string]struct {
		limits             BreakerLimits
		workloads, guarded int // each workload has two containers that request a restart
		want               bool
	}{
		"three workloads, 30 %":             {BreakerLimits{}, 3, 20, true},
		"three workloads, less than 30 %":   {BreakerLimits{}, 3, 21, false},
		"two workloads, all":                {BreakerLimits{}, 2, 4, false},
		"workloads are set":                 {BreakerLimits{Workloads: 1}, 1, 2, true},
		"percent is set":                    {BreakerLimits{Percent: 60}, 3, 10, true},
		"percent is set, and not reached":   {BreakerLimits{Percent: 61}, 3, 10, false},
		"all, of more than are said to be":  {BreakerLimits{Percent: 100}, 3, 5, true},
		"all but one":                       {BreakerLimits{Percent: 100}, 3, 7, false},
		"workloads are set and not reached": {BreakerLimits{Workloads: 4}, 3, 6, false},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t)
			c.in.Guarded, c.in.Settings.Breaker = tc.guarded, tc.limits
			for i := range tc.workloads {
				name := fmt.Sprint("w", i)
				c.addDeployment(name, 2)
				c.ask(name+"-0", name+"-1")
			}
			r := c.decide()
			if diff := cmp.Diff(Breaker{tc.want, tc.want, 2 * tc.workloads, tc.workloads, tc.guarded, NamespaceHeld{}}, r.Breaker); diff != "" {
				t.Errorf("Breaker (-want +got):\n%s", diff)
			}
			for _, d := range r.Decisions {
				if (d.Reason == ReasonBreaker) != tc.want {
					t.Errorf("reason %s: %s", d.Reason, d)
				}
			}
		})
	}
}

func TestBreakerOpensAndCloses(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded = 6
	for _, name := range []string{"a", "b", "c"} {
		c.addDeployment(name, 2)
	}
	c.setReady(false, "a-0", "b-0", "c-0") // pods that are not Ready are not exempt
	c.ask("a-0", "b-0")
	breaker := func(want Breaker, reasons ...string) {
		t.Helper()
		if diff := cmp.Diff(want, c.want(reasons...).Breaker); diff != "" {
			t.Errorf("Breaker (-want +got):\n%s", diff)
		}
	}
	breaker(Breaker{false, false, 2, 2, 6, NamespaceHeld{}}, "a-0 granted", "b-0 granted")
	c.wait(time.Second)
	c.ask("c-0")
	breaker(Breaker{true, true, 3, 3, 6, NamespaceHeld{}}, "a-0 granted_before", "b-0 granted_before", "c-0 breaker_open")
	breaker(Breaker{true, false, 3, 3, 6, NamespaceHeld{}}, "a-0 granted_before", "b-0 granted_before", "c-0 breaker_open")
	c.pass("a-0", "b-0")
	c.wait(time.Minute - 1)
	breaker(Breaker{true, false, 3, 3, 6, NamespaceHeld{}}, "c-0 breaker_open")
	c.wait(1)
	breaker(Breaker{false, true, 1, 1, 6, NamespaceHeld{}}, "c-0 granted")
	breaker(Breaker{false, false, 1, 1, 6, NamespaceHeld{}}, "c-0 granted_before")
}

func TestBreakerIsClosedWhileOff(t *testing.T) {
	c := newCluster(t)
	c.in.Settings = Settings{Mode: Off, Breaker: BreakerLimits{1, 1}}
	c.addDeployment("web", 1)
	c.ask("web-0")
	if r := c.want("web-0 off"); r.Breaker.Open {
		t.Error("the breaker is open")
	}
	c.in.Settings.Mode = Enforce
	if r := c.want("web-0 granted"); r.Breaker.Open {
		t.Error("1 of 1000 opens it with 1 %")
	}
	c.in.Guarded = 100
	if r := c.want("web-0 granted_before"); !r.Breaker.Open || !r.Breaker.Changed {
		t.Error("the breaker is closed")
	}
}

// TestBreakerForgetsPodsThatAreGone deletes the pods of a workload: then fewer pods are guarded, and the workload no
// longer counts as failing.
func TestBreakerForgetsPodsThatAreGone(t *testing.T) {
	c := newCluster(t)
	for _, name := range []string{"a", "b", "c"} {
		c.addDeployment(name, 2)
		c.ask(name + "-0")
	}
	c.in.Guarded = 6
	if r := c.decide(); !r.Breaker.Open {
		t.Fatalf("Breaker = %+v, want an open one", r.Breaker)
	}
	delete(c.in.Workloads, deployment("c"))
	c.in.Guarded, c.in.Requests = 4, nil
	if diff := cmp.Diff(Breaker{false, true, 2, 2, 4, NamespaceHeld{}}, c.decide().Breaker); diff != "" {
		t.Errorf("Breaker, of two workloads (-want +got):\n%s", diff)
	}
}

// Failures of native pods, which the kubelet handles alone, are not held.
func TestBreakerLeavesOutNativePods(t *testing.T) {
	c := newCluster(t)
	c.in.Guarded, c.in.Settings.Breaker = 2, BreakerLimits{2, 100}
	for _, name := range []string{"a", "b", "c"} {
		c.addDeployment(name, 1)
	}
	c.in.Workloads[deployment("c")].Pods["c-0"].Native = true
	c.ask("a-0", "c-0")
	if r := c.want("a-0 granted", "c-0 native"); r.Breaker.Open || r.Decisions[1].Verdict != Native || r.Decisions[1].Grant != nil {
		t.Errorf("the breaker is %+v, and the native pod is told %+v", r.Breaker, r.Decisions[1])
	}
	c.ask("b-0")
	if r := c.want("a-0 granted_before", "b-0 breaker_open", "c-0 native"); r.Breaker.Held != 2 {
		t.Errorf("the breaker is %+v", r.Breaker)
	}
}
