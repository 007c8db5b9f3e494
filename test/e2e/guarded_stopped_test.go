//go:build e2e

package e2e

import (
	"fmt"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestGuardedStopped stops guard and worker of ten guarded pods: for 30 s, as on a node without CPU time, and for two
// minutes, after which their sidecars have restarted. No application restarts, because no restart is granted. An
// application that fails afterwards still restarts.
func TestGuardedStopped(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	const pods = 10
	f := n.newFleet("web", pods, "enabled")
	n.create(newBudget("web", "maxUnavailable: 1"))
	f.watch()
	for _, d := range []time.Duration{30 * time.Second, 2 * time.Minute} {
		var stopped []process
		for _, name := range n.podsOf(f.app) {
			pod := n.pod(name)
			for _, guard := range []bool{true, false} {
				stopped = append(stopped, n.agent(pod, guard))
			}
		}
		for _, p := range stopped {
			p.signal(t, syscall.SIGSTOP)
		}
		pass(t, d)
		for _, p := range stopped {
			_ = syscall.Kill(p.pid, syscall.SIGCONT) // the kubelet may have killed it
		}
		f.waitReady(fmt.Sprintf("stopped for %s", d))
		pass(t, 30*time.Second)
		if all, _ := f.restarts(); all > 0 || n.grants() > 0 {
			t.Fatalf("%d containers have restarted, and %d restarts were granted, after the agents were stopped for %s", all, n.grants(), d)
		}
		for _, name := range n.podsOf(f.app) {
			if ended := status(n.pod(name), mesh.ContainerSidecar).RestartCount > 0; ended != (d > time.Minute) {
				t.Errorf("the sidecar of %s was started again: %t, after its processes were stopped for %s", name, ended, d)
			}
		}
	}
	f.setLive(n.podsOf(f.app)[0], false)
	f.waitRestarts(1)
}

// waitReady waits until all pods of the fleet are Ready.
func (f *fleet) waitReady(after string) {
	f.t.Helper()
	f.wait("all to be Ready after: "+after, func() error {
		for _, name := range f.podsOf(f.app) {
			if err := isReady(f.pod(name)); err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
		}
		return nil
	})
}

// TestAloneGuardedStarved gives the sidecars of ten guarded pods 10 m of a CPU for two minutes, and then the pods of
// their node almost no CPU for one minute. No container restarts without a grant, and no sidecar restarts, because
// none is silent for longer than the tolerated time without CPU.
func TestAloneGuardedStarved(t *testing.T) {
	n := newNamespace(t, injected)
	const pods, node = 10, "node2"
	f := n.newFleet("web", pods, "enabled", func(pod *corev1.PodTemplateSpec) {
		pod.Spec.NodeName = node
		pod.Spec.Containers[0].Resources = corev1.ResourceRequirements{}
	})
	n.create(newBudget("web", "maxUnavailable: 1"))
	f.watch()
	var sidecars []cpuGroup
	for _, name := range n.podsOf(f.app) {
		sidecars = append(sidecars, n.agent(n.pod(name), true).cpuGroup(t))
	}
	for _, starved := range []struct {
		what       string
		groups     []cpuGroup
		millicores int
		during     time.Duration
	}{
		{"sidecars with 10 m", sidecars, 10, 2 * time.Minute},
		{"a node without processor", []cpuGroup{sidecars[0].pods(t)}, 1, time.Minute},
	} {
		for _, g := range starved.groups {
			g.limit(t, starved.millicores)
		}
		pass(t, starved.during)
		for _, g := range starved.groups {
			g.unlimit(t)
		}
		f.waitReady(starved.what)
		pass(t, 30*time.Second)
		restarts, _ := f.restarts()
		t.Logf("%s: %d containers have restarted, %d grants", starved.what, restarts, n.grants())
		if restarts > n.grants() {
			t.Fatalf("%s: %d containers have restarted with %d grants", starved.what, restarts, n.grants())
		}
		for _, name := range n.podsOf(f.app) {
			if c := status(n.pod(name), mesh.ContainerSidecar).RestartCount; c > 0 {
				t.Errorf("%s: the sidecar of %s has restarted %d times", starved.what, name, c)
			}
		}
	}
}
