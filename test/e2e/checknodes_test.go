//go:build e2e

package e2e

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/webhook"
)

// checkLine is a line of sondectl check.
type checkLine struct {
	Name, Level, Text, Do string
	Notes                 []string
}

// checkLines returns the lines of one check of the installation. Other tests cause faults, so the exit code does not
// matter.
func checkLines(t *testing.T, name string, args ...string) []checkLine {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "../../bin/sondectl", append([]string{"check", "--installed", "-o", "json"}, args...)...)
	cmd.Env = []string{"HOME=" + t.TempDir(), "KUBECONFIG=" + os.Getenv("KUBECONFIG"), "PATH=" + os.Getenv("PATH")}
	cmd.Stdout, cmd.Stderr = &out, &errOut
	_ = cmd.Run() // exit code 6: a line is [fail]
	var lines []checkLine
	if err := json.Unmarshal(out.Bytes(), &lines); err != nil {
		t.Fatalf("sondectl check: exit code %d, %v, %s%s", cmd.ProcessState.ExitCode(), err, errOut.String(), out.String())
	}
	failed := slices.ContainsFunc(lines, func(l checkLine) bool { return l.Level == "fail" })
	if code := cmd.ProcessState.ExitCode(); failed != (code == 6) || !failed && code != 0 {
		t.Errorf("sondectl check: exit code %d, %s", code, errOut.String())
	}
	return slices.DeleteFunc(lines, func(l checkLine) bool { return l.Name != name })
}

// TestCheckNodes has sondectl check try redirection by a Job on each node, with the image of the installation. Then
// it tries a missing image, an image of another program, and a namespace where Pod Security rejects the Job's pods.
// No Job is left.
func TestCheckNodes(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected) // a namespace where Jobs would also be injected
	check := func(want checkLine, args ...string) {
		t.Helper()
		want.Name = "nodes"
		lines := checkLines(t, "nodes", append([]string{"--nodes", "--nodes-namespace=" + n.name}, args...)...)
		if len(lines) != 1 {
			t.Fatalf("lines %+v, want one", lines)
		}
		for i, note := range lines[0].Notes { // the container runtime's error
			lines[0].Notes[i] = regexp.MustCompile(`(connection refused|exec: ")[^\n]*(: node1, node2)$`).ReplaceAllString(note, "$1…$2")
			lines[0].Notes[i] = regexp.MustCompile(`(Failed|failed) to (pull|create) [^\n]*(connection refused|exec: ")`).ReplaceAllString(lines[0].Notes[i], "…$3")
		}
		if diff := cmp.Diff(want, lines[0]); diff != "" {
			t.Errorf("check --nodes %v (-want +got):\n%s", args, diff)
		}
		n.noJobs()
	}
	node, err := cluster.client.CoreV1().Nodes().Get(t.Context(), "node1", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	kernel := regexp.MustCompile(`^\d+\.\d+`).FindString(node.Status.NodeInfo.KernelVersion)
	good := checkLine{Level: "ok", Text: "2 nodes can redirect: nftables, kernel " + kernel}
	check(good)
	check(checkLine{
		Level: "fail", Text: "image 127.0.0.1:1/none:1 cannot be pulled: injected pods would not start on these nodes", Notes: []string{"…connection refused…: node1, node2"},
		Do: "make sure that the nodes reach the registry, and that service account default of namespace " + n.name + " has its imagePullSecrets; --nodes-image sets another image",
	}, "--nodes-image=127.0.0.1:1/none:1")
	check(checkLine{
		Level: "fail", Text: "no pod could run the test within 2m0s", Notes: []string{`ended with exit code 128 (StartError): …exec: "…: node1, node2`},
		Do: "fix the errors (see kubectl describe node), or allow more time with --nodes-timeout",
	}, "--nodes-image="+appImage)
	n.patch(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":"restricted"}}}`)
	check(checkLine{
		Level: "fail",
		Text: "cannot create a pod that redirects connections in namespace " + n.name + `: pods "sondectl-check" is forbidden: violates PodSecurity "restricted:latest": ` +
			`unrestricted capabilities (container "kuma-init" must not include "NET_ADMIN" in securityContext.capabilities.add), ` +
			`runAsNonRoot != true (container "kuma-init" must not set securityContext.runAsNonRoot=false), runAsUser=0 (container "kuma-init" must not set runAsUser=0)`,
		Do: "set --nodes-namespace to a namespace for pods of the mesh: its Pod Security must allow NET_ADMIN (pod-security.kubernetes.io/enforce: privileged)",
	})
	n.patch(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":null}}}`)
	check(good)
}

// noJobs checks that no Job is left, and waits until their pods are deleted.
func (n *namespace) noJobs() {
	n.t.Helper()
	jobs, err := cluster.client.BatchV1().Jobs(n.name).List(n.t.Context(), metav1.ListOptions{})
	if err != nil || len(jobs.Items) > 0 {
		n.t.Errorf("%d Jobs are left, %v", len(jobs.Items), err)
	}
	n.wait("the end of the pods of Jobs", func() error {
		pods, err := cluster.client.CoreV1().Pods(n.name).List(n.t.Context(), metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("there are %d", len(pods.Items))
		}
		return err
	})
}

// TestCheckPorts has applications that listen on undeclared ports of the sidecar: after a native sidecar, which then
// has the port, and before Envoy and before the agent.
func TestCheckPorts(t *testing.T) {
	t.Parallel()
	n := newMesh(t, "PERMISSIVE")
	n.create(newPod("peer", "node1"))
	ca := n.pod("peer").Annotations[mesh.AnnotationControlPlaneCA]
	late := newPod("late", "node1")
	c := &late.Spec.Containers[0]
	c.Args, c.TerminationMessagePolicy = append(c.Args, fmt.Sprintf("--banner=:%d", mesh.PortRedirectIn)), corev1.TerminationMessageFallbackToLogsOnError
	n.create(late)
	early := map[string]int{"envoy": mesh.PortRedirectIn, "agent": mesh.PortMetrics, "prometheus": mesh.PortPodMetrics}
	for name, port := range early {
		p := newPod(name, "node1")
		p.Spec.InitContainers = []corev1.Container{{
			Name: "early", Image: appImage, RestartPolicy: new(corev1.ContainerRestartPolicyAlways), Args: []string{fmt.Sprintf("--tcp=:%d", port)},
		}}
		n.create(n.injectAs(webhook.Container, p, ca)) // a native sidecar would start first
	}
	n.takenPorts(
		fmt.Sprintf("Pod/%s/agent: the agent cannot listen on port 9902, for metrics of the sidecar", n.name),
		fmt.Sprintf("Pod/%s/late: container app cannot listen on port 15006, which the sidecar uses, for redirection", n.name),
		fmt.Sprintf("Pod/%s/prometheus: the agent cannot listen on port 5670, for Prometheus", n.name),
		fmt.Sprintf("%s/envoy.%[1]s: Envoy cannot listen on port 15006, for redirection", n.name),
	)
	for _, name := range []string{"late", "envoy", "agent", "prometheus"} {
		n.deletePod(name)
		n.create(newPod(name, "node1"))
	}
	n.waitReady("late", "envoy", "agent", "prometheus")
	n.takenPorts()
}

// takenPorts waits until sondectl check reports exactly these port conflicts of the namespace.
func (n *namespace) takenPorts(want ...string) {
	n.t.Helper()
	n.wait("the line of taken ports", func() error {
		lines := checkLines(n.t, "taken ports")
		if len(lines) != 1 {
			return fmt.Errorf("lines %+v, want one", lines)
		}
		l := lines[0]
		failed := checkLine{
			Name: "taken ports", Level: "fail", Text: "the sidecar and another process of the pod use the same port", Notes: l.Notes,
			Do: "change the application's port; for 9000, alternatively set the pods' annotation kuma.io/virtual-probes-port, for 5670 annotation sonde.dev/metrics-port",
		}
		if len(l.Notes) == 0 { // another test may cause some
			failed = checkLine{Name: "taken ports", Level: "ok", Text: "no port conflicts"}
		}
		here := slices.DeleteFunc(slices.Clone(l.Notes), func(note string) bool { return !strings.Contains(note, n.name) })
		slices.Sort(want)
		if diff := cmp.Diff(failed, l); diff != "" || !slices.Equal(here, want) {
			return fmt.Errorf("clashes %q, want %q; (-want +got):\n%s", here, want, diff)
		}
		return nil
	})
}
