package restarts

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/controller/watch"
	"github.com/sonde-mesh/sonde/restartbudget"
)

// Every agent receives the setting of how failures are held, even in unguarded pods.
func TestHoldIsTold(t *testing.T) {
	var told []watch.Key
	r := newTestRestarts(t, Options{Agents: func() Agents { return podAgents{tell: func(pod watch.Key) { told = append(told, pod) }} }, Proxy: proxyOf})
	p := guardedPod()
	p.Name = "plain"
	unguard(p)
	for _, o := range []any{guardedPod(), p} {
		if err := r.cluster.pods.Add(o); err != nil {
			t.Fatal(err)
		}
	}
	r.setPolicies(r.cluster.policies(restartbudget.Settings{}))
	plain := watch.Key{Namespace: "shop", Name: "plain"}
	if hold := r.Of(proxyOf(plain)).GetHold(); hold != agentv1.Restarts_ERRORED {
		t.Errorf("by default an agent gets %s", hold)
	}
	told = nil
	r.Configure(restartbudget.Settings{}, mesh.HoldErrored)
	r.Configure(restartbudget.Settings{}, mesh.HoldWarning)
	if len(told) != 2 || !slices.Contains(told, plain) || r.Of(proxyOf(plain)).GetHold() != agentv1.Restarts_WARNING {
		t.Errorf("woken %v with %s, want each of two pods once, and a warning", told, r.Of(proxyOf(plain)).GetHold())
	}
}

// The condition of a pod says how its failure is held, also after the setting has changed.
func TestConditionSaysHow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, nothingRestarts)
		a.deploy("web", 1)
		defer a.lead(1)()
		a.fail("web-0")
		wait(2 * time.Second)
		message := func() string {
			for _, c := range a.pod("web-0").Status.Conditions {
				if c.Type == mesh.ConditionLivenessHeld {
					return c.Message
				}
			}
			return ""
		}
		if !strings.HasSuffix(message(), "; held as errored") {
			t.Errorf("condition %q", message())
		}
		a.r.Configure(nothingRestarts, mesh.HoldWarning)
		wait(2 * conditionEvery)
		if !strings.HasSuffix(message(), "; held as warning") || a.r.Round().Hold != mesh.HoldWarning {
			t.Errorf("condition %q, round %+v, after the change", message(), a.r.Round())
		}
		wait(time.Hour)
		n := slices.DeleteFunc(a.sent(), func(r request) bool { return r.what != "PATCH pods" })
		if len(n) != 2 {
			t.Errorf("%d writes of conditions, want 2", len(n))
		}
	})
}

// Nodes with unheld restarts are named only while the setting is in effect under which they were noticed.
func TestUnheldNodesAreOfOneWayToHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAPI(t, nothingRestarts)
		a.deploy("web", 1)
		p := a.pod("web-0")
		running(p)
		a.setPod(p)
		defer a.lead(1)()
		a.fail("web-0")
		wait(10 * time.Second)
		restarts(exitKilled, "Error")(p)
		a.setPod(p)
		wait(10 * time.Second)
		m := a.r.Round().message("a", nil).GetRound()
		if n := m.GetUnheld(); len(n) != 1 || n[0].GetName() != "node1" || n[0].GetRestarts() != 1 || n[0].GetPod() != "web-0" || n[0].GetContainer() != "app" || m.GetHold() != "errored" {
			t.Errorf("round %v", m)
		}
		a.r.Configure(nothingRestarts, mesh.HoldWarning)
		wait(10 * time.Second)
		if n := a.r.Round().Unheld; len(n) != 0 {
			t.Errorf("nodes %+v after the change, want none", n)
		}
	})
}

// An agent of an earlier release holds failures in the only way that it supports.
func TestHoldOf(t *testing.T) {
	r := newTestRestarts(t, Options{Agents: func() Agents { return podAgents{} }, Proxy: proxyOf, Hold: mesh.HoldWarning})
	for feature, want := range map[string]mesh.LivenessHold{agentv1.FeatureLivenessHold: mesh.HoldWarning, agentv1.FeatureRestartGrants: mesh.HoldErrored} {
		if got := r.holdOf(&adminv1.Agent{Features: []string{feature}}); got != want {
			t.Errorf("holdOf() of an agent with %s = %s, want %s", feature, got, want)
		}
	}
}
