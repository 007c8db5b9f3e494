//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// away is how long the control plane and the API server are stopped.
const away = 2 * time.Minute

// controlPlaneLabel selects the pods of the control plane.
const controlPlaneLabel = "app.kubernetes.io/name=sonde"

// watched is a mesh under load, in which nothing may change.
type watched struct {
	*namespace
	loads map[string]load
	pods  []string
	// failed has the failed calls of each load that are acceptable.
	failed map[string]int
	// began is when the loads started, and rolls is how often the pods of web were replaced since.
	began time.Time
	rolls int
}

// newWatched has a client in the mesh and a client outside of it call two pods with frequent liveness probes. The
// liveness probes restart a container only after half a minute, because a new sidecar may need that on a busy
// machine. A readiness probe, which fails after 3 s, detects shorter failures.
func newWatched(t *testing.T, labels map[string]string) *watched {
	t.Helper()
	n := newNamespace(t, labels)
	stranger := newPod("stranger", "node1")
	stranger.Labels[mesh.LabelOwnInjection] = "disabled" // also if Sonde ignores Kuma's labels
	d := newDeployment("web", 2, nil)
	d.Spec.Template.Spec.Containers[0].LivenessProbe = &corev1.Probe{
		ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)}},
		PeriodSeconds: 1, FailureThreshold: 30,
	}
	serveOn(&d.Spec.Template.Spec, 10*time.Second)
	n.create(d, newService("web"), newPod("client", "node1"), stranger)
	n.waitReady("client", "stranger")
	n.waitRolledOut("web")
	w := &watched{namespace: n, loads: map[string]load{}, pods: append(n.podsOf("web"), "client", "stranger"), failed: map[string]int{}, began: time.Now()}
	for _, from := range []string{"client", "stranger"} {
		a := n.app(from)
		a.waitCall("http://web.%s/", n.name)
		for kind, target := range map[string]string{"http": "http://web." + n.name + "/", "http-new": "http://web." + n.name + "/", "grpc": "web." + n.name + ":81", "tcp": "web." + n.name + ":82"} {
			w.loads[from+" "+kind] = a.startLoad(kind, target)
		}
	}
	return w
}

// podsOf returns the names of pods with the label app.
func (n *namespace) podsOf(app string) []string {
	n.t.Helper()
	return n.selected("app=" + app)
}

// selected returns the names of pods by their labels.
func (n *namespace) selected(labels string) []string {
	n.t.Helper()
	list, err := cluster.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: labels})
	if err != nil {
		n.t.Fatal(err)
	}
	var names []string
	for i := range list.Items {
		names = append(names, list.Items[i].Name)
	}
	return names
}

// checkLoads fails the test if calls have failed.
func (w *watched) checkLoads(when string) {
	w.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(w.loads)) {
		l := w.loads[name]
		l.waitMore(20)
		if r := l.report(); r.Failed > w.failed[name] {
			w.t.Errorf("%s: %s: %v, of which %d are no fault", when, name, r, w.failed[name])
		}
	}
}

// accept treats the failed calls so far as acceptable.
func (w *watched) accept(when string) {
	w.t.Helper()
	for _, name := range slices.Sorted(maps.Keys(w.loads)) {
		r := w.loads[name].report()
		if r.Failed > w.failed[name] {
			w.t.Logf("%s: %s: %v", when, name, r)
		}
		w.failed[name] = r.Failed
	}
}

// checkUntouched fails the test if containers were restarted, or pods are not ready.
func (w *watched) checkUntouched(when string) {
	w.t.Helper()
	w.checkPodsUntouched(when, w.pods...)
}

// checkPodsUntouched is checkUntouched for pods outside of the mesh.
func (n *namespace) checkPodsUntouched(when string, pods ...string) {
	n.t.Helper()
	for _, name := range pods {
		p := n.pod(name)
		if err := isReady(p); err != nil {
			n.t.Errorf("%s: pod %s: %v", when, name, err)
		}
		for _, s := range statuses(p) {
			if s.RestartCount > 0 {
				n.t.Errorf("%s: pod %s: container %s was restarted: %s", when, name, s.Name, stateOf(s.LastTerminationState))
			}
		}
	}
}

// TestAgentKilled kills the worker of an agent, which does not affect the pod: Envoy continues, and the next worker
// adopts it. Then it kills the guard, which ends the sidecar: calls of this pod fail until the sidecar restarts; the
// application continues, and other pods are not affected.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	for _, s := range []side{inMesh, inPerPort} {
		t.Run(string(s), func(t *testing.T) {
			t.Parallel()
			killAgent(t, newWatched(t, labelsOf[s]))
		})
	}
}

func killAgent(t *testing.T, w *watched) {
	t.Helper()
	victim := w.pod(w.pods[0])
	stop := w.watchHistory(victim.Name, mesh.ContainerSidecar)
	for range 3 {
		worker := w.agent(victim, false)
		worker.kill(t)
		w.wait("the next worker", func() error {
			for _, p := range w.processes(victim) {
				if p.pid != worker.pid && !p.first && len(p.command) > 1 && p.command[1] == "run" {
					return nil
				}
			}
			return errors.New("not found")
		})
		w.checkLoads("the worker was killed")
	}
	w.checkUntouched("the worker was killed")
	if h := stop(); len(h.PodReady) != 1 || len(h.Ready) != 1 {
		t.Errorf("the pod was not always ready: %+v", h)
	}

	w.agent(victim, true).kill(t)
	w.waitPod(victim.Name, "with a new sidecar and Ready", func(p *corev1.Pod) error {
		if s := status(p, mesh.ContainerSidecar); s.RestartCount != 1 {
			return fmt.Errorf("kuma-sidecar was restarted %d times", s.RestartCount)
		}
		return isReady(p)
	})
	if s := status(w.pod(victim.Name), "app"); s.RestartCount > 0 {
		t.Errorf("the application was restarted: %s", stateOf(s.LastTerminationState))
	}
	w.waitStable("the guard was killed")
}

// waitStable waits until all calls succeed again.
func (w *watched) waitStable(when string) {
	w.t.Helper()
	w.wait("calls that all succeed", func() error {
		before := w.failedNow()
		for _, l := range w.loads {
			l.waitMore(20)
		}
		if now := w.failedNow(); now != before {
			return fmt.Errorf("%d more have failed", now-before)
		}
		return nil
	})
	w.accept(when)
}

// failedNow returns the number of failed calls of all loads.
func (w *watched) failedNow() (failed int) {
	w.t.Helper()
	for _, l := range w.loads {
		failed += l.report().Failed
	}
	return failed
}

// TestRedirectionFlushed removes the rules of a pod. Its traffic then bypasses Envoy: the pod is not ready until it
// is replaced.
func TestRedirectionFlushed(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	n.create(newDeployment("web", 1, nil))
	n.waitRolledOut("web")
	name := n.podsOf("web")[0]
	onNetworkOf(t, n.agent(n.pod(name), true), "nft", "delete", "table", "inet", "sonde")
	n.waitPod(name, "not Ready", isNotReady)
	n.waitEvent(name, "Unhealthy", "15022")
	n.waitEvent(name, "ProbeFailed", "Readiness probe failed", "the redirection of the pod's connections is missing")
	n.deletePod(name)
	n.waitRolledOut("web")
	if now := n.podsOf("web")[0]; now == name {
		t.Errorf("the pod is still %s", name)
	}
}

// TestAloneControlPlane kills the control plane, and then stops it for a while. It runs alone.
func TestAloneControlPlane(t *testing.T) {
	w := newWatched(t, injected)
	cp := &namespace{t: t, name: systemNamespace}
	for _, name := range cp.selected(controlPlaneLabel) {
		for _, p := range cp.processes(cp.pod(name)) {
			p.kill(t)
		}
	}
	w.checkLoads("the control plane was killed")
	cp.waitRolledOutAs("sonde-cp", controlPlaneLabel)
	w.checkUntouched("the control plane was killed")

	guarded := newAwayFleets(w.namespace)
	cp.scale("sonde-cp", 0)
	cp.waitRolledOutAs("sonde-cp", controlPlaneLabel)
	for _, f := range guarded {
		f.fail(false)
	}
	w.scale("web", 3)
	w.waitEvent(w.replicaSet("web"), "FailedCreate", "inject.sonde.dev")
	pass(t, away)
	w.checkLoads("the control plane was away")
	w.checkUntouched("the control plane was away")
	checkAway(guarded)
	cp.scale("sonde-cp", replicas)
	cp.waitRolledOutAs("sonde-cp", controlPlaneLabel)
	for _, f := range guarded {
		f.waitHealed()
		if f.app != "native" {
			f.check(1)
		}
	}
	// Without that, the ReplicaSet retries only after up to 17 minutes.
	w.wait("the ReplicaSet to be told to try again", func() error {
		rs, err := cluster.client.AppsV1().ReplicaSets(w.name).Get(t.Context(), w.replicaSet("web"), metav1.GetOptions{})
		if err == nil && rs.Annotations[mesh.OwnPrefix+"retry"] == "" {
			err = fmt.Errorf("its annotations are %v", rs.Annotations)
		}
		return err
	})
	w.waitRolledOut("web")
	w.checkCaughtUp("the control plane was away")
}

// TestAloneAPIServer stops the API server for a while, in which the control plane stays live and ready. It runs
// alone.
func TestAloneAPIServer(t *testing.T) {
	w := newWatched(t, injected)
	cp := &namespace{t: t, name: systemNamespace}
	replicas := cp.selected(controlPlaneLabel)
	stop := cp.watchHealth(replicas)
	testbed(t, "stop", "apiserver")
	pass(t, away)
	testbed(t, "start", "apiserver") // registered first: without the API server, the test could not clean up
	w.checkLoads("the API server was away")
	w.wait("the API server", func() error {
		_, err := cluster.client.CoreV1().Pods(w.name).List(t.Context(), metav1.ListOptions{})
		return err
	})
	w.checkUntouched("the API server was away")
	late := newNamespace(t, injected) // the control plane may not have read it yet
	late.create(newPod("late", "node2"))
	late.waitReady("late")
	// The EndpointSlice controller catches up, too: later tests create Services.
	late.create(newService("late"))
	late.wait("an answer of a new Service", func() error {
		if c := late.app("late").call("http://late.%s/", late.name); c.Status != http.StatusOK {
			return fmt.Errorf("%+v", c)
		}
		return nil
	})
	w.scale("web", 3)
	w.waitRolledOut("web")
	w.checkCaughtUp("the API server was away")
	cp.checkPodsUntouched("the API server was away", replicas...)
	for answer, times := range stop() {
		t.Logf("%d times %s", times, answer)
		if !strings.HasSuffix(answer, " 200 ok") {
			t.Errorf("the control plane returned %q while the API server was stopped", answer)
		}
	}
}

// checkCaughtUp fails the test unless clients reach all pods of web, including new ones, and no call has failed so
// far.
func (w *watched) checkCaughtUp(when string) {
	w.t.Helper()
	all := w.podsOf("web")
	w.wait("calls of the new pod", func() error {
		r := w.loads["client http-new"].report()
		for _, name := range all {
			if r.Instances[name] == 0 {
				return fmt.Errorf("%s has not answered: %v", name, r.Instances)
			}
		}
		return nil
	})
	w.checkLoads(when)
	w.checkUntouched(when)
}

// pass waits while a component is stopped.
func pass(t *testing.T, d time.Duration) {
	t.Helper()
	select {
	case <-time.After(d):
	case <-t.Context().Done():
	}
}

// replicaSet returns the name of the newest ReplicaSet of a Deployment.
func (n *namespace) replicaSet(deployment string) string {
	n.t.Helper()
	list, err := cluster.client.AppsV1().ReplicaSets(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "app=" + deployment})
	if err != nil || len(list.Items) != 1 {
		n.t.Fatalf("want one ReplicaSet: %v %v", err, list)
	}
	return list.Items[0].Name
}
