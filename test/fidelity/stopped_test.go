package fidelity_test

import (
	"context"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/webhook"
)

// changes are the kubelet's decisions.
type changes struct {
	mu     sync.Mutex
	failed []kubelet.Change
	passed map[kubelet.Change]bool
}

func (c *changes) add(change kubelet.Change) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if change.Passed {
		c.passed[change] = true
	} else if c.passed[kubelet.Change{Container: change.Container, Kind: change.Kind, Passed: true}] {
		c.failed = append(c.failed, change) // before its first success a container counts as failed
	}
}

func (c *changes) count() (passed, failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.passed), len(c.failed)
}

// TestStoppedAgent stops the guard and the worker of a guarded pod for longer than the users' timeouts, with failure
// thresholds of one. The kubelet restarts nothing, but finds each container unready.
func TestStoppedAgent(t *testing.T) {
	slowtest.Skip(t, "stops an agent for some seconds")
	t.Parallel()
	h, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	p, err := newAddressPool(1).take("")
	if err != nil {
		t.Fatal(err)
	}
	c := cases.Unforgiving()
	app, err := c.Start(p)
	if err != nil {
		t.Fatal(err)
	}
	defer app.End()
	pod := c.Pod(p)
	if pod.Annotations == nil {
		pod.Annotations = map[string]string{}
	}
	pod.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	for i := range pod.Spec.Containers {
		pod.Spec.Containers[i].LivenessProbe.TimeoutSeconds, pod.Spec.Containers[i].ReadinessProbe.TimeoutSeconds = 1, 1
	}
	injected, _, err := webhook.Inject(pod, webhook.Options{VirtualProbesPort: int32(p.Virtual)})
	if err != nil {
		t.Fatal(err)
	}
	agent, err := h.start(injected, p)
	if err != nil {
		t.Fatal(err)
	}
	defer agent.Kill()
	ctx, cancel := context.WithCancel(t.Context())
	seen := &changes{passed: map[kubelet.Change]bool{}}
	var owned sync.WaitGroup
	defer owned.Wait()
	defer cancel()
	owned.Go(func() { kubelet.Watch(ctx, probesOf(injected), seen.add) })
	const containers = 3
	eventually(t, "all probes pass", func() bool { passed, _ := seen.count(); return passed == 2*containers })

	worker, err := agent.Worker()
	if err != nil {
		t.Fatal(err)
	}
	signal := func(s syscall.Signal) {
		for _, pid := range []int{agent.Guard(), worker} {
			if err := syscall.Kill(pid, s); err != nil {
				t.Error(err)
			}
		}
	}
	signal(syscall.SIGSTOP)
	eventually(t, "the readiness probes fail", func() bool { _, failed := seen.count(); return failed >= containers })
	<-time.After(3 * time.Second) // several periods and timeouts
	signal(syscall.SIGCONT)
	k := kubelet.New()
	defer k.Close()
	for _, name := range []string{"web", "tcp", "grpc"} {
		container, err := find(injected, name)
		if err != nil {
			t.Fatal(err)
		}
		eventually(t, "the liveness probe of "+name+" passes", func() bool {
			verdict, _ := k.Probe(ctx, injected, *container, "liveness")
			return cases.Verdict(verdict) == cases.Success
		})
	}
	seen.mu.Lock()
	defer seen.mu.Unlock()
	if i := slices.IndexFunc(seen.failed, func(c kubelet.Change) bool { return c.Kind == "liveness" }); i >= 0 {
		t.Errorf("the kubelet restarted container %s while its agent was stopped, without a grant: it found %v",
			seen.failed[i].Container, seen.failed)
	}
}

// probesOf removes the sidecar, whose own probes need Envoy.
func probesOf(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.InitContainers = nil
	return pod
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	wait.For(t, what, holds)
}
