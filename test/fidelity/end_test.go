package fidelity_test

import (
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/test/sondedp"
	"github.com/sonde-mesh/sonde/webhook"
)

// TestEndOfTheAgent sends SIGTERM to the agent while the kubelet waits for it. A probe without a verdict becomes
// Errored, and the kubelet asks again at once. A running hook is finished before the agent ends.
func TestEndOfTheAgent(t *testing.T) { // not parallel: on a busy machine the kubelet does not ask again at once
	slowtest.Skip(t, "the kubelet asks until the agent ends")
	h, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	pool := newAddressPool(2)
	for kind, want := range map[string]cases.Verdict{"liveness": cases.Errored, "preStop": cases.Success} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			p, err := pool.take("")
			if err != nil {
				t.Fatal(err)
			}
			release := make(chan struct{})
			c := cases.Held(kind, release)
			app, err := c.Start(p)
			if err != nil {
				t.Fatal(err)
			}
			defer app.End()
			k, agent, asked := h.startFor(t, p, c.Pod(p))
			got := &outcome{}
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				got.ask(t.Context(), k, asked, &asked.Spec.Containers[0], kind)
			}()
			eventually(t, "the application is asked", func() bool { return strings.Contains(strings.Join(app.Log(), ""), "GET /slow") })
			if err := agent.Signal(syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			if kind == "preStop" {
				for range 20 { // more than a second, because of the rate limit
					if verdict, message := k.Probe(t.Context(), asked, asked.Spec.Containers[0], "readiness"); cases.Verdict(verdict) != cases.Success {
						t.Fatalf("readiness while the hook runs: %s: %s", verdict, message)
					}
				}
				close(release)
			}
			<-answered
			if got.verdicts[0] != want {
				t.Errorf("%s: %s, want %s: %s", kind, got.verdicts[0], want, got.messages[0])
			}
			if <-agent.Ended; agent.Err != nil {
				t.Errorf("sonde-dp probes: %v\n%s", agent.Err, agent.Log())
			}
		})
	}
}

// startFor starts an agent for a pod.
func (h *handlers) startFor(t *testing.T, p cases.PodAddress, pod *corev1.Pod) (*kubelet.Kubelet, *sondedp.Agent, *corev1.Pod) {
	t.Helper()
	injected, _, err := webhook.Inject(pod, webhook.Options{VirtualProbesPort: int32(p.Virtual)})
	if err != nil {
		t.Fatal(err)
	}
	a, err := h.start(injected, p)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(a.Kill)
	k := kubelet.New()
	t.Cleanup(k.Close)
	return k, a, injected
}
