//go:build e2e

package e2e

import (
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/v1alpha1"
)

// TestAloneGuarded makes the liveness probes of all pods of a Deployment fail, and meanwhile stops each component
// that takes part in their restarts, one after the other: never more pods restart at once than the budget allows, and
// each restarts once. The end of a sidecar restarts no application.
func TestAloneGuarded(t *testing.T) {
	n := newNamespace(t, injected)
	cp := &namespace{t: t, name: systemNamespace}
	const pods, budget = 15, 3
	f := n.newFleet("web", pods, "enabled")
	f.watch()
	names := cp.waitReplicas()
	f.fail(false)

	f.waitRestarts(1)
	leads, follows := cp.leading(names)
	for _, p := range cp.processes(cp.pod(leads)) {
		p.kill(t)
	}
	f.waitRestarts(budget + 1)

	leads, follows = cp.leading(cp.waitReplicas())
	kubelet := "kubelet" + strings.TrimPrefix(cp.pod(leads).Spec.NodeName, "node")
	testbed(t, "stop", kubelet) // it would kill the leader
	stopped := cp.processes(cp.pod(leads))
	for _, p := range stopped {
		p.signal(t, syscall.SIGSTOP)
	}
	cp.wait("another leader", func() error {
		if now, _ := cp.leading([]string{leads, follows}); now != follows {
			return fmt.Errorf("%s leads", now)
		}
		return nil
	})
	for _, p := range stopped {
		p.signal(t, syscall.SIGCONT)
	}
	testbed(t, "start", kubelet)
	all, _ := f.restarts()
	f.waitRestarts(min(all+1, pods))

	for _, guard := range []bool{false, true} {
		n.agent(n.pod(f.failing()), guard).kill(t)
		all, _ = f.restarts()
		f.waitRestarts(min(all+1, pods))
	}
	// Some grants are lost: the leader wrote one while it started, or the kubelet forgot the failures when it
	// restarted. Their pods wait until the grant expires.
	f.waitRestarts(pods)
	testbed(t, "stop", "kubelet2")
	testbed(t, "start", "kubelet2")
	f.waitHealed()
	f.check(budget)
	cp.waitReplicas()
}

// failing returns the name of a pod whose application has not restarted.
func (f *fleet) failing() string {
	f.t.Helper()
	for _, name := range f.podsOf(f.app) {
		if status(f.pod(name), "app").RestartCount == 0 {
			return name
		}
	}
	f.t.Fatal("all have restarted")
	return ""
}

// grants returns the number of granted restarts in the namespace.
func (n *namespace) grants() int {
	n.t.Helper()
	client, err := newClient(func(string) {})
	if err != nil {
		n.t.Fatal(err)
	}
	list, err := client.Resource(v1alpha1.GroupVersion.WithResource("restartgrants")).Namespace(n.name).List(n.t.Context(), metav1.ListOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	return len(list.Items)
}

// TestAloneGuardedBreaker makes so many workloads fail at once that nothing restarts, because they seem to share a
// cause. Once most of them are healthy, the others restart. breakerWorkloads is the chart's setting, so that parallel
// tests do not open the circuit breaker.
const breakerWorkloads = 6

func TestAloneGuardedBreaker(t *testing.T) {
	n := newNamespace(t, injected)
	var all []*fleet
	for i := range breakerWorkloads {
		all = append(all, n.newFleet(fmt.Sprint("web", i), 1, "enabled"))
	}
	for _, f := range all {
		f.watch()
	}
	for _, f := range all { // one at a time would restart some before
		f.setLive(n.podsOf(f.app)[0], false)
	}
	pass(t, 15*time.Second)
	granted := n.grants()
	t.Logf("%d restarts granted before the breaker opened", granted)
	if granted == breakerWorkloads {
		t.Fatal("all may restart")
	}
	pass(t, 20*time.Second)
	if now := n.grants(); now != granted {
		t.Errorf("%d restarts granted while the breaker is open", now-granted)
	}
	restarts := 0
	for _, f := range all {
		one, _ := f.restarts()
		restarts += one
	}
	if restarts > granted {
		t.Errorf("%d restarts of %d granted", restarts, granted)
	}
	var waits *fleet
	for _, f := range all {
		if one, _ := f.restarts(); one == 0 && waits == nil {
			waits = f
			continue
		}
		f.setLive(n.podsOf(f.app)[0], true)
	}
	waits.waitRestarts(1)
}

// newAwayFleets returns a guarded Deployment for each policy about a stopped control plane, named after the policy.
func newAwayFleets(n *namespace) []*fleet {
	n.t.Helper()
	n.create(newBudget("slots", "whenAway: slots"), newBudget("native", "whenAway: native, nativeAfter: 1m"))
	var all []*fleet
	for _, policy := range []string{"hold", "slots", "native"} {
		all = append(all, n.newFleet(policy, 2, "enabled"))
	}
	for _, f := range all {
		f.watch()
	}
	return all
}

// checkAway checks the restarts after the control plane has been stopped for two minutes: no pod that holds, all pods
// that are left to the kubelet, and the pods whose slot has come, except perhaps the last.
func checkAway(all []*fleet) {
	for _, f := range all {
		f.t.Helper()
		got, _ := f.restarts()
		right := map[string]bool{"hold": got == 0, "slots": got > 0, "native": got == f.pods}
		if !right[f.app] {
			f.t.Errorf("%s: %d of %d pods restarted while the control plane was away", f.app, got, f.pods)
		}
	}
}
