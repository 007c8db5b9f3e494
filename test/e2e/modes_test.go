//go:build e2e

package e2e

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// modeLabel sets the mode of probes of a pod or namespace.
const modeLabel = mesh.AnnotationVirtualProbesMode

// TestAloneModesRoll rolls a Deployment from the per-port mode of probes to the unified mode and back, beside a
// Deployment in the other mode, while clients call it and the kubelet makes all kinds of probes. It runs alone,
// because a late response of the sidecar on a busy machine makes its pod unready.
func TestAloneModesRoll(t *testing.T) {
	n := newNamespace(t, injected)
	d := newDeployment("web", 3, map[string]string{modeLabel: "per-port"})
	probeInAllWays(&d.Spec.Template.Spec.Containers[0])
	serveOn(&d.Spec.Template.Spec, 10*time.Second)
	stranger := newPod("stranger", "node1")
	stranger.Labels[join] = "disabled"
	stop := n.watchModes("web")
	n.create(d, newService("web"), newPod("client", "node1"), stranger)
	n.waitReady("client", "stranger")
	n.waitRolledOut("web")
	loads := map[string]load{}
	for _, from := range []string{"client", "stranger"} {
		a := n.app(from)
		a.waitCall("http://web.%s/", n.name)
		for kind, target := range map[string]string{"http": "http://web." + n.name + "/", "http-new": "http://web." + n.name + "/", "grpc": "web." + n.name + ":81"} {
			loads[from+" "+kind] = a.startLoad(kind, target)
		}
	}
	for _, mode := range []string{"unified", "per-port"} {
		n.restart("web", map[string]string{modeLabel: mode})
		n.waitRolledOut("web")
		for _, name := range n.podsOf("web") {
			if p := n.pod(name); p.Annotations[modeLabel] != mode {
				t.Errorf("pod %s is recorded as %q, want %s", name, p.Annotations[modeLabel], mode)
			}
		}
		for name, l := range loads {
			l.waitMore(20)
			if r := l.report(); r.Failed > 0 {
				t.Errorf("%s, after the roll to %s: %v", name, mode, r)
			}
		}
	}
	seen, faults := stop()
	for _, fault := range faults {
		t.Error(fault)
	}
	if want := []string{"per-port", "unified"}; !slices.Equal(seen, want) {
		t.Errorf("the modes of the pods were %v, want %v", seen, want)
	}
}

// probeInAllWays gives a container of the application a probe of each kind, once a second.
func probeInAllWays(c *corev1.Container) {
	probe := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, PeriodSeconds: 1, TimeoutSeconds: 3}
	}
	c.StartupProbe = probe(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: portGRPC}})
	c.LivenessProbe = probe(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portTCP)}})
	c.ReadinessProbe = probe(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: intstr.FromInt32(portHTTP)}})
}

// watchModes watches the pods with the label app until the returned function is called. That function returns their
// modes, sorted, and unexpected changes of pods: a Ready pod that became unready, or a restarted container.
func (n *namespace) watchModes(app string) (stop func() (modes, faults []string)) {
	n.t.Helper()
	ctx, cancel := context.WithCancel(n.t.Context())
	w, err := cluster.client.CoreV1().Pods(n.name).Watch(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		cancel()
		n.t.Fatal(err)
	}
	var modes, faults []string
	var done sync.WaitGroup
	done.Go(func() {
		wasReady := map[string]bool{}
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == watch.Deleted || p.DeletionTimestamp != nil {
				continue
			}
			modes = append(modes, p.Annotations[modeLabel])
			ready := isReady(p) == nil
			if wasReady[p.Name] && !ready {
				faults = append(faults, fmt.Sprintf("pod %s in mode %s is no longer ready: %s", p.Name, p.Annotations[modeLabel], summary(p)))
			}
			wasReady[p.Name] = ready
			for _, s := range statuses(p) {
				if s.RestartCount > 0 {
					faults = append(faults, fmt.Sprintf("pod %s: container %s was restarted: %s", p.Name, s.Name, stateOf(s.LastTerminationState)))
				}
			}
		}
	})
	return func() ([]string, []string) {
		cancel()
		w.Stop()
		done.Wait()
		slices.Sort(modes)
		return slices.Compact(modes), faults
	}
}

// TestAloneModeFlag changes the control plane's flag: running pods do not change, and new pods are in the other mode.
// It runs alone.
func TestAloneModeFlag(t *testing.T) {
	w := newWatched(t, injected)
	cp := &namespace{t: t, name: systemNamespace}
	cp.configure("virtualProbesMode: unified", "virtualProbesMode: per-port")
	defer cp.configure("virtualProbesMode: per-port", "virtualProbesMode: unified")
	pass(t, 10*time.Second) // for some more probes
	w.checkLoads("the flag was flipped")
	w.checkUntouched("the flag was flipped")
	for _, name := range w.pods {
		if got := w.pod(name).Annotations[modeLabel]; name != "stranger" && got != "unified" {
			t.Errorf("pod %s is recorded as %q", name, got)
		}
	}
	late := newPod("late", "node2")
	probeInAllWays(&late.Spec.Containers[0])
	w.create(late)
	w.waitReady("late")
	if got := w.pod("late"); got.Annotations[modeLabel] != "per-port" || got.Spec.Containers[0].LivenessProbe.TCPSocket == nil {
		t.Errorf("a pod since is recorded as %q, and its liveness probe is %+v", got.Annotations[modeLabel], got.Spec.Containers[0].LivenessProbe)
	}
}

// configure replaces a line of the control plane's configuration, and restarts it.
func (n *namespace) configure(line, by string) {
	n.t.Helper()
	config, err := cluster.client.CoreV1().ConfigMaps(n.name).Get(n.t.Context(), "sonde-cp", metav1.GetOptions{})
	if err != nil {
		n.t.Fatal(err)
	}
	text := config.Data["config.yaml"]
	if !strings.Contains(text, line) {
		n.t.Fatalf("the configuration has no line %q:\n%s", line, text)
	}
	config.Data["config.yaml"] = strings.ReplaceAll(text, line, by)
	if _, err := cluster.client.CoreV1().ConfigMaps(n.name).Update(n.t.Context(), config, metav1.UpdateOptions{}); err != nil {
		n.t.Fatal(err)
	}
	n.patchDeployment("sonde-cp", fmt.Sprintf(`{"spec": {"template": {"metadata": {"annotations": {"sonde.dev/test": %q}}}}}`, by))
	n.waitRolledOutAs("sonde-cp", controlPlaneLabel)
}
