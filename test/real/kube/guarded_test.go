package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/yaml"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/api/v1alpha1"
	"github.com/sonde-mesh/sonde/dpagent/held"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestGuardedLivenessIsReconfigured changes the mode of a running sonde-cp by its file: an agent holds a failure,
// reports it to the kubelet at once, and finally gets a grant.
func TestGuardedLivenessIsReconfigured(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	namespace(t, client, "modes", nil)
	p, file := startProgram(t, "guardedLiveness: {blacklist: {namespaces: [modes]}}\n")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	a := newGuardedAgent(t, newGuardedPod(t, client, "modes"), p)

	a.is("enforced, and on the blacklist", "held")
	// Only then has the control plane decided on the held failure.
	must.Poll(t, "the blacklist to hold it", func(ctx context.Context) error {
		return condition(ctx, client.CoreV1().Pods("modes"), corev1.ConditionTrue, "Blacklisted")
	})
	granted(t, "modes", "no grant")
	file("guardedLiveness: {mode: dryRun}\n")
	a.is("a dry run", "told")
	granted(t, "modes", "a simulated grant", "dryRun")
	a.is("a dry run with a grant", "told")
	file("guardedLiveness: {mode: 'off'}\n")
	granted(t, "modes", "the simulation to end", "dryRun refunded")
	a.is("off", "told")
	file("guardedLiveness: {mode: enforce}\n")
	a.is("enforced", "granted")
	granted(t, "modes", "a grant", "dryRun refunded", "open")
}

// TestLivenessAnnotation changes the annotations of a running pod.
func TestLivenessAnnotation(t *testing.T) {
	deleteMeshes(t)
	client := newClient(t)
	namespace(t, client, "annotated", nil)
	p := startPlane(t, "a")
	accepted(t, sondePath("", "meshes")+"/default", "True", "Accepted", "")
	m := newGuardedPod(t, client, "annotated")
	annotateGuarded(t, client, mesh.AnnotationLiveness, `"suspended"`)
	a := newGuardedAgent(t, m, p)

	a.is("suspended", "held")
	annotateGuarded(t, client, mesh.AnnotationLiveness, `"native"`)
	a.is("native", "told")
	annotateGuarded(t, client, mesh.AnnotationLiveness, `"of"`)
	event(t, client, `metadata.annotations["sonde.dev/liveness"]: "of": must be suspended or native; the previous value stays in effect: native`)
	a.is("what is neither, after native", "told")
	annotateGuarded(t, client, mesh.AnnotationLiveness, `"suspended"`)
	a.is("suspended again", "held")
	annotateGuarded(t, client, mesh.AnnotationGuardedLiveness, `"disabled"`)
	event(t, client, `metadata.annotations["sonde.dev/guarded-liveness"]: "disabled": must be enabled while this pod runs`)
	a.is("suspended, and no longer to be guarded", "held")
	granted(t, "annotated", "no grant")
	annotateGuarded(t, client, mesh.AnnotationLiveness, "null")
	a.is("without an annotation", "granted")
	granted(t, "annotated", "a grant", "open")
}

// guardedAgent is the guarded liveness part of a pod's agent. Its container fails each check.
type guardedAgent struct {
	t        *testing.T
	liveness *held.Liveness
	metrics  *prometheus.Registry
}

func newGuardedAgent(t *testing.T, m *machine, p *plane) *guardedAgent {
	t.Helper()
	a := &guardedAgent{t: t, metrics: prometheus.NewRegistry()}
	a.liveness = held.New(held.Options{Keep: func(*agentv1.Restarts) {}, Logger: slog.New(slog.DiscardHandler), Registerer: a.metrics})
	m.join(p)
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := agentv1.NewAgentServiceClient(m.dial(p)).Session(ctx)
	if err != nil {
		t.Fatal(err)
	}
	messages, received := make(chan *agentv1.AgentMessage), make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() {
		defer close(received)
		for {
			r, err := stream.Recv()
			if err != nil {
				return // the test has ended; otherwise the test sees that messages stop
			}
			if r.GetRestarts() != nil {
				a.liveness.Told(r.GetRestarts())
			}
			if answer := m.answer(r); answer != nil {
				select {
				case messages <- answer:
				case <-ctx.Done():
				}
			}
		}
	})
	hello := m.hello(false)
	hello.GetHello().Features = append(hello.GetHello().GetFeatures(), agentv1.FeatureRestartGrants)
	if err := stream.Send(hello); err != nil {
		t.Fatal(err)
	}
	a.liveness.Connected(true)
	running.Go(func() {
		for {
			var message *agentv1.AgentMessage
			select {
			case <-received:
				return
			case message = <-messages:
			case <-a.liveness.Due():
				message = &agentv1.AgentMessage{Message: &agentv1.AgentMessage_Liveness{Liveness: a.liveness.Report()}}
			}
			_ = stream.Send(message) // Recv returns the error
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return a
}

// is waits until the failure is held, reported to the kubelet without a grant (told), or with a grant (granted). The
// report and the metric must agree.
func (a *guardedAgent) is(when, want string) {
	a.t.Helper()
	must.Poll(a.t, when+": "+want, func(context.Context) error {
		isHeld := a.liveness.Failed(mesh.Probe{Container: "app", Type: mesh.ProbeLiveness, Guarded: true, FailureThreshold: 1, PeriodSeconds: 10, TimeoutSeconds: 1}, "refused")
		said := a.liveness.Report().GetHeld()[0]
		got := "held"
		switch {
		case said.GetGrant() != "":
			got = "granted"
		case said.GetTold():
			got = "told"
		}
		shown, err := a.metrics.Gather()
		if err != nil {
			a.t.Fatal(err)
		}
		if isHeld != (got == "held") || len(shown) == 1 != isHeld { // exactly one metric, while held
			a.t.Fatalf("%s: held: %t, reported as %s, and the metric differs", when, isHeld, got)
		}
		if got != want {
			return fmt.Errorf("it is %s", got)
		}
		return nil
	})
}

// granted waits until a namespace has exactly these RestartGrants, in the order of their names: each with its
// outcome, or open.
func granted(t *testing.T, namespace, what string, want ...string) {
	t.Helper()
	must.Poll(t, what, func(ctx context.Context) error {
		text, err := cluster.Do(ctx, http.MethodGet, sondePath(namespace, "restartgrants"), "", "")
		if err != nil {
			return err
		}
		var list v1alpha1.RestartGrantList
		if err := yaml.Unmarshal([]byte(text), &list); err != nil {
			return err
		}
		var got []string
		for _, g := range list.Items {
			said := g.Status.Outcome
			if said == "" && !g.Spec.DryRun {
				said = "open"
			}
			if g.Spec.DryRun {
				said = strings.TrimSpace("dryRun " + said)
			}
			got = append(got, said)
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("the grants are %q, want %q", got, want)
		}
		return nil
	})
}

// annotateGuarded sets an annotation of newGuardedPod's pod in the namespace annotated, as JSON; null removes the
// annotation.
func annotateGuarded(t *testing.T, client kubernetes.Interface, key, value string) {
	t.Helper()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{%q:%s}}}`, key, value)
	if _, err := client.CoreV1().Pods("annotated").Patch(t.Context(), "guarded", types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
}

// event waits for a warning event about that pod whose note starts with this text.
func event(t *testing.T, client kubernetes.Interface, note string) {
	t.Helper()
	must.Poll(t, "an event", func(ctx context.Context) error {
		events, err := client.EventsV1().Events("annotated").List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range events.Items {
			if e.Regarding.Name == "guarded" && e.Reason == "BadAnnotation" && strings.HasPrefix(e.Note, note) {
				return nil
			}
		}
		return errors.New("no event yet")
	})
}
