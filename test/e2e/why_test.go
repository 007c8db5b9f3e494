//go:build e2e

package e2e

import (
	"bytes"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// whyTimes matches the times, which differ between runs.
var whyTimes = regexp.MustCompile(` (since|at) [-0-9T:]+Z( \([^)]*\))?`)

// why waits until sondectl's paragraph about a pod matches, without times.
func (n *namespace) why(pod, want string) {
	n.t.Helper()
	pattern := regexp.MustCompile("^pod/" + pod + " in namespace " + n.name + " " + want)
	n.wait("why pod/"+pod, func() error {
		var out, errOut bytes.Buffer
		cmd := exec.CommandContext(n.t.Context(), "../../bin/sondectl", "why", "pod/"+pod, "-n", n.name)
		cmd.Env = []string{"HOME=" + n.t.TempDir(), "KUBECONFIG=" + os.Getenv("KUBECONFIG"), "PATH=" + os.Getenv("PATH")}
		cmd.Stdout, cmd.Stderr = &out, &errOut
		err := cmd.Run()
		said, _, _ := strings.Cut(out.String(), "\n")
		if said = whyTimes.ReplaceAllString(said, ""); err != nil || !pattern.MatchString(said) {
			return errors.Join(err, fmt.Errorf("%s%s\nwant %s", errOut.String(), out.String(), pattern))
		}
		n.t.Logf("sondectl why pod/%s:\n%s", pod, out.String())
		return nil
	})
}

const isWell = `is well: it is in mesh \S+, Ready, and `

func tcpProbe(port int) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt(port)}}, PeriodSeconds: 1}
}

// TestWhyReadiness has applications that are not ready: by their response, and because nothing listens on the probe's
// port.
func TestWhyReadiness(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	wrong := newPod("wrong", "node1")
	wrong.Spec.Containers[0].ReadinessProbe.HTTPGet.Port = intstr.FromInt32(8089)
	n.create(newPod("web", "node1"), newService("web"), wrong)
	n.waitReady("web")
	n.why("web", isWell+`gets traffic of Service web\.$`)
	set := func(status string) { n.app("web").do("PUT", "/http", url.Values{"status": {status}}, nil) }
	set("500")
	n.why("web", `is not Ready: the readiness probe of container app \(httpGet :8080 /healthz\) fails: HTTP probe failed with statuscode: 500\.`)
	n.waitEvent("web", "ProbeFailed", "Readiness probe failed: HTTP probe failed with statuscode: 500")
	set("200")
	n.why("web", isWell)
	n.why("wrong", `is not Ready: the readiness probe of container app \(httpGet :8089 /healthz\) fails: .*connect: connection refused`)
	n.deletePod("wrong")
	n.create(newPod("wrong", "node1"))
	n.waitReady("wrong")
	n.why("wrong", isWell)
}

// TestWhyRestarted has containers that restart because of their liveness probe, their memory, and their own
// exit.
func TestWhyRestarted(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	live, greedy, ends := newPod("live", "node1"), newPod("greedy", "node1"), newPod("ends", "node1")
	c := &live.Spec.Containers[0]
	c.LivenessProbe, c.ReadinessProbe = c.ReadinessProbe, tcpProbe(portTCP)
	c = &greedy.Spec.Containers[0]
	c.ReadinessProbe, c.Env = tcpProbe(portTCP), append(c.Env, corev1.EnvVar{Name: "GOGC", Value: "off"})
	c.Resources.Limits = corev1.ResourceList{corev1.ResourceMemory: resource.MustParse("40Mi")}
	ends.Spec.Containers[0].Args = []string{"--call=http://127.0.0.1:1/"}
	n.create(live, greedy, ends)
	n.waitReady("live", "greedy")
	n.app("live").do("PUT", "/http", url.Values{"status": {"503"}}, nil)
	n.why("live", isWell+`.*: container app has restarted \d+ times?, last: its liveness probe \(httpGet :8080 /healthz\) failed: HTTP probe failed with statuscode: 503`)
	var killed error
	for i := 0; i < 30 && killed == nil; i++ { // each load keeps its memory
		killed = n.app("greedy").try("PUT", "/load", url.Values{"name": {strconv.Itoa(i)}, "kind": {"http"}, "target": {fmt.Sprintf("http://127.0.0.1:%d/", portHTTP)}}, nil)
	}
	n.why("greedy", `.*container app (has restarted|does not run, and has restarted) \d+ times?.*: exit code 137, killed for its memory use: its limit is 40Mi`)
	n.why("ends", `is not Ready: container app does not run, and has restarted \d+ times?: it ended by itself with exit code 1`)
}

// TestWhyInit has an init container that fails until its destination exists.
func TestWhyInit(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	p := newPod("waits", "node1")
	p.Spec.InitContainers = []corev1.Container{{Name: "migrate", Image: appImage, Args: []string{"--call=http://backend:80/"}}}
	n.create(p)
	n.why("waits", `is not Ready: init container migrate has ended with exit code 1.*, and the containers after it wait\.`)
	n.create(newPod("backend", "node1"), newService("backend"))
	n.waitReady("waits")
	n.why("waits", isWell)
}

// TestWhyNotInjected has a pod that is older than the label of its namespace.
func TestWhyNotInjected(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, outside)
	n.create(newPod("old", "node1"))
	n.waitReady("old")
	n.why("old", `is not in the mesh: it has no sidecar, and nothing asks for one: neither the pod nor namespace `+n.name+` has sonde\.dev/sidecar-injection or kuma\.io/sidecar-injection\.`)
	n.patch(`{"metadata":{"labels":{"kuma.io/sidecar-injection":"enabled"}}}`)
	why := "it has no sidecar although kuma.io/sidecar-injection of namespace " + n.name + " asks for one: it was created before the label was set, or without the webhook"
	n.why("old", `is not in the mesh: `+regexp.QuoteMeta(why)+`\. Pods are injected when they are created: delete it, and create it again\.`)
	n.wait("the event", func() error { // the leader searches for such pods periodically
		events, err := n.events(t.Context())
		for _, e := range events {
			if e.InvolvedObject.Name == "old" && e.Reason == "NotInjected" && e.Message == why {
				return nil
			}
		}
		return errors.Join(err, fmt.Errorf("%d other events", len(events)))
	})
	n.deletePod("old")
	n.create(newPod("old", "node1"))
	n.waitReady("old")
	n.why("old", isWell)
}

// patch patches the namespace.
func (n *namespace) patch(patch string) {
	n.t.Helper()
	if _, err := cluster.client.CoreV1().Namespaces().Patch(n.t.Context(), n.name, types.MergePatchType, []byte(patch), metav1.PatchOptions{}); err != nil {
		n.t.Fatal(err)
	}
}

// TestWhyJoinRefused has a pod that has a node when its namespace stops allowing its mesh.
func TestWhyJoinRefused(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	p := newPod("web", "")
	p.Spec.SchedulingGates = []corev1.PodSchedulingGate{{Name: "e2e.example.com/gate"}}
	n.create(p)
	n.why("web", `is not Ready: no node takes it: SchedulingGated`)
	n.patch(`{"metadata":{"annotations":{"sonde.dev/meshes":"blue"}}}`)
	pods := cluster.client.CoreV1().Pods(n.name)
	if _, err := pods.Patch(t.Context(), "web", types.MergePatchType, []byte(`{"spec":{"schedulingGates":null}}`), metav1.PatchOptions{}); err != nil {
		t.Fatal(err)
	}
	n.why("web", `is not Ready: its agent cannot join: .*sonde\.dev/meshes`)
	n.waitEvent("web", "JoinRefused", "its agent cannot join: ", "sonde.dev/meshes")
	n.patch(`{"metadata":{"annotations":{"sonde.dev/meshes":null}}}`)
	n.waitReady("web")
	n.why("web", isWell)
}

// TestWhyListenerRefused has a program that starts before Envoy, and occupies its port.
func TestWhyListenerRefused(t *testing.T) {
	t.Parallel()
	n := newMesh(t, "PERMISSIVE")
	n.create(newPod("peer", "node1"))
	ca := n.pod("peer").Annotations[mesh.AnnotationControlPlaneCA]
	const controlEarly = portControl + 1
	p := newPod("taken", "node1")
	p.Annotations[mesh.AnnotationExcludeInboundPorts] = fmt.Sprintf("%d,%d", portControl, controlEarly)
	p.Spec.InitContainers = []corev1.Container{{
		Name: "early", Image: appImage, RestartPolicy: new(corev1.ContainerRestartPolicyAlways),
		Args: []string{fmt.Sprintf("--tcp=:%d", mesh.PortRedirectIn), fmt.Sprintf("--control=:%d", controlEarly)},
	}}
	n.create(n.injectAs(webhook.Container, p, ca)) // a native sidecar would start first
	n.why("taken", `is not Ready: its Envoy refuses listener inbound:capture: .*(Address already in use|address already in use)`)
	n.waitEvent("taken", "ListenerRefused", "its Envoy refuses listener inbound:capture: ")
	early := app{t, mesh.JoinHostPort(n.pod("taken").Status.PodIP, controlEarly)}
	early.do("PUT", "/port", url.Values{"name": {"tcp"}, "open": {"false"}}, nil)
	n.waitReady("taken")
	n.why("taken", isWell)
}
