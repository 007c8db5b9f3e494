package fidelity_test

import (
	"context"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/internal/slowtest"
	"github.com/sonde-mesh/sonde/internal/waittest"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/webhook"
)

// changes are what the kubelet has decided.
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
		c.failed = append(c.failed, change) // a container that has never been ready begins so
	}
}

func (c *changes) count() (passed, failed int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.passed), len(c.failed)
}

// TestDeathOfTheAgent kills the agent's worker twenty times in a minute: the kubelet restarts nothing, and finds no
// container unready, at thresholds of one failure.
func TestDeathOfTheAgent(t *testing.T) {
	slowtest.Skip(t, "probes go on for as long as agents die")
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
	injected, _, err := webhook.Inject(c.Pod(p), webhook.Options{VirtualProbesPort: int32(p.Virtual)})
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

	const probes, kills = 6, 20
	eventually(t, "all probes pass", func() bool { passed, _ := seen.count(); return passed == probes })
	var killed int
	for range kills {
		var worker int
		eventually(t, "there is a worker", func() bool {
			worker, err = agent.Worker()
			return err == nil && worker != killed
		})
		if err := syscall.Kill(worker, syscall.SIGKILL); err != nil {
			t.Fatal(err)
		}
		killed = worker
		<-time.After(700 * time.Millisecond) // probes come each second: at another moment each time
	}
	k := kubelet.New()
	defer k.Close()
	eventually(t, "a probe passes after the last death", func() bool {
		c, err := find(injected, "web")
		if err != nil {
			t.Fatal(err)
		}
		verdict, _ := k.Probe(ctx, injected, *c, "liveness")
		return verdict == cases.Success
	})
	if _, failed := seen.count(); failed > 0 {
		t.Errorf("the kubelet found %v after %d deaths of the worker:\n%s", seen.failed, kills, agent.Log())
	}
	// This test sees what it looks for: without the guard, the same probes fail.
	agent.Kill()
	eventually(t, "probes fail without an agent", func() bool { _, failed := seen.count(); return failed == probes })
}

// probesOf leaves out the sidecar, whose own probes need Envoy.
func probesOf(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	pod.Spec.InitContainers = nil
	return pod
}

func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	waittest.Holds(t, time.Minute, what, holds)
}
