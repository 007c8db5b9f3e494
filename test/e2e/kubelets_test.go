//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
)

// fieldCases are cases of the fidelity test with httpGet.protocol and grpc.mode, which kubelets support from 1.37
// on.
var fieldCases = []probeCase{
	{"field HTTP2, 200", readiness},
	{"field HTTP2, 304", liveness},
	{"field HTTP2, 503", startup},
	{"field HTTP1 of a server of HTTP/2", readiness},
	{"field TLS, SERVING", liveness},
	{"field TLS, NOT_SERVING", readiness},
	{"field Plaintext", startup},
	{"gRPC to a closed port", readiness},
}

// TestKubeletsProbes has kubelets of two versions, with the fields' feature gates, probe the cases without a mesh,
// and in a mesh in both modes. `make e2e-kubelets` has such a cluster.
func TestKubeletsProbes(t *testing.T) {
	t.Parallel()
	needGates(t)
	for _, node := range nodesOfTwoVersions(t) {
		t.Run(node, func(t *testing.T) {
			t.Parallel()
			sameProbes(t, probesOn(t, node, fieldCases), plain, inMesh, inPerPort)
		})
	}
}

// TestKubeletsOfOneDeployment has pods of one Deployment on nodes of two versions: on each node, the verdict is
// the one of its kubelet, although the agents are the same.
func TestKubeletsOfOneDeployment(t *testing.T) {
	t.Parallel()
	needGates(t)
	nodes := nodesOfTwoVersions(t)
	for _, labels := range []map[string]string{injected, perPort} {
		n := newNamespace(t, labels)
		for _, name := range []string{"field HTTP2, 200", "field TLS, SERVING", "field Plaintext"} {
			want := map[string]bool{}
			for _, node := range nodes {
				want[node] = wanted(t, name, kubeletMinor(t, node)) == cases.Success
			}
			n.deployCase(name, len(nodes))
			n.waitCase(name, want)
		}
	}
}

// TestFieldsWithoutGates has a Deployment with these fields in a cluster without their feature gates: the API server
// drops the fields, and pods behave in the mesh like pods without a mesh.
func TestFieldsWithoutGates(t *testing.T) {
	t.Parallel()
	if keepsFields(t) {
		t.Fatal("the API server keeps httpGet.protocol: this test takes a cluster without FEATURE_GATES")
	}
	const lastWithout = 36 // the last minor version whose kubelet ignores the fields
	onSides(t, func(n *namespace) bool {
		for _, name := range []string{"field HTTP2, 200", "field TLS, SERVING", "field Plaintext"} {
			n.deployCase(name, 2)
			passes := wanted(t, name, lastWithout) == cases.Success
			n.waitCase(name, map[string]bool{cluster.nodes[0]: passes, cluster.nodes[1]: passes})
		}
		return true
	}, plain, inMesh, inPerPort)
}

// TestRestartAllContainers ends a container whose exit restarts the whole pod (KEP-5532): the kubelet first
// writes its condition, then restarts agent and application, and traffic returns; another replica serves
// meanwhile.
func TestRestartAllContainers(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	n.create(newService("web"), newPod("client", cluster.nodes[0]))
	for i, name := range []string{"whole", "other"} {
		p := newPod(name, cluster.nodes[i])
		p.Labels["app"] = "web"
		app := &p.Spec.Containers[0]
		app.RestartPolicy = new(corev1.ContainerRestartPolicyAlways)
		app.RestartPolicyRules = []corev1.ContainerRestartRule{{
			Action:    corev1.ContainerRestartRuleActionRestartAllContainers,
			ExitCodes: &corev1.ContainerRestartRuleOnExitCodes{Operator: corev1.ContainerRestartRuleOnExitCodesOpIn, Values: []int32{137}},
		}}
		n.create(p)
	}
	n.waitReady("client", "whole", "other")
	client := n.app("client")
	for _, name := range []string{"whole", "other"} {
		wait(t, "an answer of "+name, func() error { return client.answers("http://web/", name) })
	}
	seen := n.watchCondition("whole", corev1.AllContainersRestarting)
	pod := n.pod("whole")
	i := slices.IndexFunc(n.processes(pod), func(p process) bool { return slices.Contains(p.command, "--name=whole") })
	n.processes(pod)[i].kill(t)
	n.waitPod("whole", "all containers are restarted", func(p *corev1.Pod) error {
		for _, name := range []string{"app", "kuma-sidecar"} {
			if s := status(p, name); s.RestartCount < 1 {
				return errors.New(summary(p))
			}
		}
		return isReady(p)
	})
	if !<-seen {
		t.Error("the kubelet has never written the condition AllContainersRestarting")
	}
	for _, name := range []string{"other", "whole"} {
		wait(t, "an answer of "+name+" after the restart", func() error { return client.answers("http://web/", name) })
	}
}

// answers returns nil if the instance responds.
func (a app) answers(url, instance string) error {
	c, err := a.tryCall(url)
	if err == nil && !strings.Contains(c.Body, `"`+instance+`"`) {
		err = fmt.Errorf("the answer is %+v", c)
	}
	return err
}

// watchCondition waits until a pod is Ready again, and returns whether the condition was True before
// that.
func (n *namespace) watchCondition(pod string, of corev1.PodConditionType) <-chan bool {
	n.t.Helper()
	w, err := cluster.client.CoreV1().Pods(n.name).Watch(n.t.Context(), metav1.SingleObject(metav1.ObjectMeta{Name: pod}))
	if err != nil {
		n.t.Fatal(err)
	}
	found := make(chan bool, 1)
	go func() {
		defer w.Stop()
		was := false
		for e := range w.ResultChan() {
			p, ok := e.Object.(*corev1.Pod)
			if !ok || e.Type == watch.Deleted {
				continue
			}
			was = was || slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == of && c.Status == corev1.ConditionTrue
			})
			if isReady(p) == nil && status(p, "app").RestartCount > 0 {
				break
			}
		}
		found <- was
	}()
	return found
}

// kubeletMinor returns the minor version of a node's kubelet.
func kubeletMinor(t *testing.T, node string) int {
	t.Helper()
	n, err := cluster.client.CoreV1().Nodes().Get(t.Context(), node, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	v, err := version.ParseGeneric(n.Status.NodeInfo.KubeletVersion)
	if err != nil {
		t.Fatal(err)
	}
	return int(v.Minor())
}

// nodesOfTwoVersions returns two nodes with kubelets of different versions.
func nodesOfTwoVersions(t *testing.T) []string {
	t.Helper()
	first := cluster.nodes[0]
	for _, node := range cluster.nodes[1:] {
		if kubeletMinor(t, node) != kubeletMinor(t, first) {
			return []string{first, node}
		}
	}
	t.Fatalf("all nodes %q have the same version: make e2e-kubelets, or K8S_NODES=1.37.2,1.36.3", cluster.nodes)
	return nil
}

// needGates ends a test in a cluster without the fields' feature gates.
func needGates(t *testing.T) {
	t.Helper()
	if !keepsFields(t) {
		t.Fatal("the API server drops httpGet.protocol: make e2e-kubelets, or FEATURE_GATES=H2CContainerProbe=true,GRPCContainerProbeTLS=true")
	}
}

// keepsFields returns whether the API server keeps the fields of a pod.
func keepsFields(t *testing.T) bool {
	t.Helper()
	p := newPod("fields", cluster.nodes[0])
	p.Spec.Containers[0].ReadinessProbe.HTTPGet.Protocol = new(corev1.HTTPProtocolHTTP2)
	made, err := cluster.client.CoreV1().Pods(metav1.NamespaceDefault).Create(t.Context(), p, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	if err != nil {
		t.Fatal(err)
	}
	return made.Spec.Containers[0].ReadinessProbe.HTTPGet.Protocol != nil
}

// wanted returns the verdict of a case by a kubelet.
func wanted(t *testing.T, name string, minor int) cases.Verdict {
	t.Helper()
	c, err := cases.Find(name)
	if err != nil {
		t.Fatal(err)
	}
	return c.Wants(1, minor)[0]
}

// deploymentOf is the name of the Deployment of a case.
func deploymentOf(name string) string {
	return strings.Trim(notInNames.ReplaceAllString(strings.ToLower(name), "-"), "-")
}

// deployCase creates a Deployment for a case, as a readiness probe, with a pod on each of as many nodes.
func (n *namespace) deployCase(name string, pods int) {
	n.t.Helper()
	c, err := cases.Find(name)
	if err != nil {
		n.t.Fatal(err)
	}
	c.Number = readiness
	const port = 20000
	app := c.Pod(cases.PodAt("", port, 9000)).Spec.Containers[0]
	app.Image, app.Args = appImage, []string{"--case=" + c.Name, fmt.Sprintf("--case-port=%d", port)}
	app.Env = []corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "status.podIP"}}}}
	app.ReadinessProbe.PeriodSeconds, app.ReadinessProbe.TimeoutSeconds = 1, 3
	d := newDeployment(deploymentOf(name), int32(pods), nil)
	spec := &d.Spec.Template.Spec
	spec.NodeName, spec.Containers = "", []corev1.Container{app}
	spec.TopologySpreadConstraints = []corev1.TopologySpreadConstraint{{
		MaxSkew: 1, TopologyKey: corev1.LabelHostname, WhenUnsatisfiable: corev1.DoNotSchedule,
		LabelSelector: d.Spec.Selector,
	}}
	n.create(d)
}

// waitCase waits until each node's pod of a case is ready, or has failed its probe, as its kubelet's verdict
// demands.
func (n *namespace) waitCase(name string, ready map[string]bool) {
	n.t.Helper()
	app := deploymentOf(name)
	n.wait("the pods of "+app, func() error {
		list, err := cluster.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{LabelSelector: "app=" + app})
		if err != nil {
			return err
		}
		left := len(ready)
		for i := range list.Items {
			p := &list.Items[i]
			want, asked := ready[p.Spec.NodeName]
			switch {
			case !asked:
				return fmt.Errorf("pod %s is on node %q", p.Name, p.Spec.NodeName)
			case want && isReady(p) != nil, !want && !n.unhealthy(p):
				return fmt.Errorf("on %s, ready %t is wanted: %s", p.Spec.NodeName, want, summary(p))
			case !want && isReady(p) == nil:
				n.t.Fatalf("the pod on %s is ready, though its kubelet's probe fails: %s", p.Spec.NodeName, summary(p))
			}
			left--
		}
		if left != 0 {
			return fmt.Errorf("%d pods on %d nodes", len(list.Items), len(ready))
		}
		return nil
	})
}

// unhealthy returns whether the kubelet has reported a failed probe of the application.
func (n *namespace) unhealthy(p *corev1.Pod) bool {
	events, err := n.events(n.t.Context())
	return err == nil && slices.ContainsFunc(events, func(e corev1.Event) bool {
		return about(&e, p.Name, "app") && e.Reason == "Unhealthy" && strings.HasPrefix(e.Message, "Readiness probe failed")
	})
}
