//go:build e2e

package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
)

// lbPort is sonde.dev/lb-health-port in these tests.
const lbPort = 9100

// The taints of autoscalers.
const (
	autoscalerTaint = "ToBeDeletedByClusterAutoscaler"
	karpenterTaint  = "karpenter.sh/disrupted"
)

// edge is a Service with pods on both nodes, behind a load balancer that never stops.
type edge struct {
	*namespace
	balancer *balancer
	load     *harness.Load
	pods     map[string][]string // by node
}

// newEdge creates pods on both nodes, whose liveness probes use the health port for load balancers.
func newEdge(t *testing.T) *edge {
	t.Helper()
	e := &edge{namespace: newNamespace(t, injected), balancer: newBalancer(lbPort), pods: map[string][]string{}}
	e.create(newService("edge"))
	for _, node := range cluster.nodes[:2] {
		d := newDeployment("edge-"+node, 2, nil)
		spec := &d.Spec.Template.Spec
		spec.NodeName, spec.TerminationGracePeriodSeconds = node, new(int64(60))
		spec.Tolerations = []corev1.Toleration{{Operator: corev1.TolerationOpExists}}
		d.Spec.Selector.MatchLabels = map[string]string{"part": node}
		d.Spec.Template.Labels = map[string]string{"app": "edge", "part": node}
		d.Spec.Template.Annotations[mesh.AnnotationLBHealthPort] = strconv.Itoa(lbPort)
		d.Spec.Template.Annotations[mesh.AnnotationLBDrainTime] = lbDrainTime.String()
		app := &spec.Containers[0]
		serveOn(spec, 2*lbDrainTime)
		app.LivenessProbe = &corev1.Probe{
			ProbeHandler:  corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/livez", Port: intstr.FromInt32(lbPort)}},
			PeriodSeconds: 1, TimeoutSeconds: 10, // no response may fail, but a response may be late
		}
		e.create(d)
	}
	for _, node := range cluster.nodes[:2] {
		e.waitRolledOutAs("edge-"+node, "part="+node)
	}
	e.refresh()
	e.load = e.balancer.start(t.Context(), 200, 50)
	t.Cleanup(func() { e.balancer.stop() })
	e.waitHealthy("at first", cluster.nodes...)
	return e
}

// refresh updates the load balancer's targets.
func (e *edge) refresh() {
	e.t.Helper()
	pods := map[string]string{}
	for _, node := range cluster.nodes[:2] {
		e.pods[node] = e.selected("part=" + node)
		for _, name := range e.pods[node] {
			pods[name] = e.pod(name).Status.PodIP
		}
	}
	e.balancer.setTargets(pods)
}

// waitHealthy waits until the load balancer has found exactly the pods of these nodes healthy.
func (e *edge) waitHealthy(when string, nodes ...string) {
	e.t.Helper()
	wanted := map[string]bool{}
	for _, node := range nodes {
		for _, name := range e.pods[node] {
			wanted[name] = true
		}
	}
	e.waitThese(when, wanted)
}

func (e *edge) waitThese(when string, wanted map[string]bool) {
	e.t.Helper()
	e.wait(when+": the load balancer's choice", func() error {
		for name, t := range e.balancer.states() {
			if t.healthy != wanted[name] {
				return fmt.Errorf("%s is healthy: %t, want %t: %s", name, t.healthy, wanted[name], t.reason)
			}
		}
		return nil
	})
}

// check fails the test if a request has failed, or a long connection has broken that should not
// have.
func (e *edge) check(when string) {
	e.t.Helper()
	if err := e.load.WaitMore(e.t.Context(), 100); err != nil {
		e.t.Errorf("%s: %v", when, err)
	}
	if r := e.load.Report(); r.Failed > 0 {
		e.t.Errorf("%s: %v", when, r)
	}
	e.balancer.mu.Lock()
	defer e.balancer.mu.Unlock()
	for _, text := range e.balancer.broken {
		e.t.Errorf("%s: a long connection broke: %s", when, text)
	}
	e.balancer.broken = nil
	for _, node := range cluster.nodes[:2] {
		for _, name := range e.pods[node] {
			for _, s := range statuses(e.pod(name)) {
				if s.RestartCount > 0 {
					e.t.Errorf("%s: pod %s: container %s was restarted: %s", when, name, s.Name, stateOf(s.LastTerminationState))
				}
			}
		}
	}
}

// taint sets the taints of a node in addition to its other taints; without keys, it removes them.
func taint(t *testing.T, node string, keys ...string) {
	t.Helper()
	n, err := cluster.client.CoreV1().Nodes().Get(context.WithoutCancel(t.Context()), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	taints := slices.DeleteFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == autoscalerTaint || t.Key == karpenterTaint })
	for _, key := range keys {
		taints = append(taints, corev1.Taint{Key: key, Effect: corev1.TaintEffectNoSchedule})
	}
	patch, err := json.Marshal(map[string]any{"spec": map[string]any{"taints": taints}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cluster.client.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// annotateNode sets the annotation that sondectl drain writes; nil removes it.
func annotateNode(t *testing.T, node string, reason *string) {
	t.Helper()
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": map[string]*string{mesh.AnnotationDrain: reason}}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = cluster.client.CoreV1().Nodes().Patch(context.WithoutCancel(t.Context()), node, types.MergePatchType, patch, metav1.PatchOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

// newNodes returns two nodes, and undrains them after the test.
func newNodes(t *testing.T) (stays, goes string) {
	t.Helper()
	stays, goes = cluster.nodes[0], cluster.nodes[1]
	t.Cleanup(func() {
		for _, node := range []string{stays, goes} {
			taint(t, node)
			annotateNode(t, node, nil)
		}
	})
	return stays, goes
}

// TestAloneDrain removes nodes and pods in various ways while a load balancer sends them traffic. It runs alone
// because it drains nodes that all tests use.
func TestAloneDrain(t *testing.T) {
	e := newEdge(t)
	stays, goes := newNodes(t)
	for name, way := range map[string]struct{ drain, undrain func() }{
		"Karpenter":     {func() { taint(t, goes, karpenterTaint) }, func() { taint(t, goes) }},
		"administrator": {func() { annotateNode(t, goes, new("a test")) }, func() { annotateNode(t, goes, nil) }},
	} {
		way.drain()
		e.waitHealthy(name, stays)
		pass(t, lbDrainTime+learnTime)
		e.check(name)
		way.undrain()
		e.waitHealthy(name+", taken back", stays, goes)
	}
	if e.balancer.breaks > 0 {
		t.Errorf("%d long connections broke, and nothing has ended", e.balancer.breaks)
	}

	e.deleteOne(goes)
	e.guard(stays, goes)
	t.Logf("%v; %d long connections ended", e.load.Report(), e.balancer.breaks)
}

// TestAloneDrainFaults drains a node while the API server and the control plane are stopped, and then removes a node.
// It runs alone.
func TestAloneDrainFaults(t *testing.T) {
	e := newEdge(t)
	stays, goes := newNodes(t)
	e.withoutOthers(stays, goes)
	e.loseNode(stays, goes)
	t.Logf("%v; %d long connections ended", e.load.Report(), e.balancer.breaks)
}

// deleteOne deletes a pod, which serves until the load balancer has detected it.
func (e *edge) deleteOne(node string) {
	e.t.Helper()
	victim := e.pods[node][0]
	wanted := map[string]bool{}
	for name := range e.balancer.states() {
		wanted[name] = name != victim
	}
	if err := cluster.client.CoreV1().Pods(e.name).Delete(e.t.Context(), victim, metav1.DeleteOptions{}); err != nil {
		e.t.Fatal(err)
	}
	e.waitThese("a pod is deleted", wanted)
	e.waitRolledOutAs("edge-"+node, "part="+node)
	e.refresh()
	e.waitHealthy("a pod was deleted", cluster.nodes...)
	e.check("a pod was deleted")
}

// guard drains all nodes at once: at least one pod must keep serving.
func (e *edge) guard(nodes ...string) {
	e.t.Helper()
	taint(e.t, nodes[0], autoscalerTaint)
	e.waitHealthy("one node goes", nodes[1])
	taint(e.t, nodes[1], autoscalerTaint)
	e.waitHealthy("all nodes go", nodes...)
	e.waitEvent("edge", "DrainHeld", "fewer than 1 proxies")
	pass(e.t, learnTime)
	e.check("all nodes go")
	taint(e.t, nodes[0])
	e.waitHealthy("one node stays", nodes[0])
	taint(e.t, nodes[1])
	e.waitHealthy("all nodes stay", nodes...)
	e.check("all nodes stay")
}

// withoutOthers drains while the API server is stopped, and while the control plane is stopped and
// restarted.
func (e *edge) withoutOthers(stays, goes string) {
	e.t.Helper()
	taint(e.t, goes, autoscalerTaint)
	e.waitHealthy("a node goes", stays)
	changes := e.changes()
	testbed(e.t, "stop", "apiserver")
	pass(e.t, 15*time.Second)
	testbed(e.t, "start", "apiserver")
	e.wait("the API server", func() error {
		_, err := cluster.client.CoreV1().Pods(e.name).List(e.t.Context(), metav1.ListOptions{})
		return err
	})
	cp := &namespace{t: e.t, name: systemNamespace}
	for _, name := range cp.selected(controlPlaneLabel) {
		cp.deletePod(name)
	}
	cp.waitRolledOutAs("sonde-cp", controlPlaneLabel)
	pass(e.t, 5*time.Second)
	if now := e.changes(); !maps.Equal(now, changes) {
		e.t.Errorf("proxies flapped while the API server and the control plane were away: %v, before %v", now, changes)
	}
	e.check("the API server and the control plane were away")
	taint(e.t, goes)
	e.waitHealthy("the node stays", stays, goes)
}

// changes returns how often each proxy has changed its health response.
func (e *edge) changes() map[string]int {
	all := map[string]int{}
	for name, t := range e.balancer.states() {
		all[name] = t.changes
	}
	return all
}

// loseNode removes a node like the autoscaler: taint, eviction, end.
func (e *edge) loseNode(stays, goes string) {
	e.t.Helper()
	taint(e.t, goes, autoscalerTaint)
	e.waitHealthy("the node goes", stays)
	e.check("the node goes")
	e.scale("edge-"+goes, 0)
	e.waitRolledOutAs("edge-"+goes, "part="+goes)
	e.refresh()
	e.check("the node is drained")
	testbed(e.t, "link", strings.TrimPrefix(goes, "node"), "down")
	defer func() {
		testbed(e.t, "link", strings.TrimPrefix(goes, "node"), "up")
		e.wait("the node that was cut off", func() error {
			n, err := cluster.client.CoreV1().Nodes().Get(context.WithoutCancel(e.t.Context()), goes, metav1.GetOptions{})
			if err != nil {
				return err
			}
			for _, c := range n.Status.Conditions {
				if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
					return nil
				}
			}
			return fmt.Errorf("the pod is not ready: %+v", n.Status.Conditions)
		})
	}()
	pass(e.t, 5*time.Second)
	e.check("the node is cut off")
}
