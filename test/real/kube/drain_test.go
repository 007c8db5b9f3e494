package kube

import (
	"bytes"
	"context"
	"errors"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// makeDrainable creates nodes and pods; two pods have the same name.
func makeDrainable(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	namespace(t, client, "drain", nil)
	for _, name := range []string{"worker", "twice"} {
		if _, err := client.CoreV1().Nodes().Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := client.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{}); err != nil {
				t.Error(err)
			}
		})
	}
	for name, labels := range map[string]map[string]string{"web": {mesh.LabelMesh: "default"}, "twice": {mesh.LabelMesh: "default"}, "alone": nil} {
		pod := podOf("drain", name, func(p *corev1.Pod) { p.Labels = labels })
		if _, err := client.CoreV1().Pods("drain").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
}

// ctl runs sondectl, and returns its exit code and output.
func ctl(t *testing.T, program string, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(t.Context(), program, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if failed := (*exec.ExitError)(nil); errors.As(err, &failed) {
		code = failed.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	return code, out.String(), errs.String()
}

// TestDrain drains and undrains nodes and pods with sondectl and the caller's rights.
func TestDrain(t *testing.T) {
	program, err := sondectl()
	if err != nil {
		t.Fatal(err)
	}
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := cluster.WriteKubeconfig(kubeconfig, cluster.Config.Host, cluster.Config.BearerToken); err != nil {
		t.Fatal(err)
	}
	client := newClient(t)
	makeDrainable(t, client)
	steps := []struct {
		command        string
		code           int
		stdout, stderr string
	}{
		{"drain worker --reason update", 0, "node worker drains\n", ""},
		{"drain node/worker", 0, "node worker drains; before: node is drained: update\n", ""},
		{"undrain no/worker", 0, "node worker no longer drains\n", ""},
		{"undrain worker", 0, "node worker was not drained\n", ""},
		{"drain web -n drain", 0, "pod web drains\n", ""},
		{"undrain po/web -n drain", 0, "pod web no longer drains\n", ""},
		{"drain pod/alone -n drain", 0, "pod alone drains\n", "if it has no sidecar, it still gets traffic"},
		{"drain web", 1, "", `"web": not found as a node, nor as a pod in namespace default`},
		{"drain pod/web", 1, "", `read pod "web": pods "web" not found`},
		{"drain twice -n drain", 1, "", "twice: both a node and a pod have this name: use node/twice or pod/twice"},
		{"drain pod/twice -n drain", 0, "pod twice drains\n", ""},
		{"drain service/web", 2, "", `"service/web": must be NAME, node/NAME, pod/NAME or dataplane/NAME`},
		{"drain node/", 2, "", `"node/": must be`},
		{"drain node/a/b", 2, "", `"node/a/b": must be`},
		{"drain", 2, "", "must be one node, pod or dataplane"},
		{"drain worker web", 2, "", "must be one node, pod or dataplane"},
		{"drain worker --context nowhere", 2, "", `--context: "nowhere": must be a context of `},
	}
	for _, step := range steps {
		code, stdout, stderr := ctl(t, program, append(strings.Fields(step.command), "--kubeconfig", kubeconfig)...)
		if code != step.code || stdout != step.stdout || !strings.Contains(stderr, step.stderr) || step.stderr == "" && stderr != "" {
			t.Errorf("sondectl %s: exit code %d, want %d\n%q\n%q", step.command, code, step.code, stdout, stderr)
		}
	}
	drained := map[string]bool{}
	pods, err := client.CoreV1().Pods("drain").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range pods.Items {
		_, drained[pods.Items[i].Name] = pods.Items[i].Annotations[mesh.AnnotationDrain]
	}
	if !drained["twice"] || !drained["alone"] || drained["web"] {
		t.Errorf("drained: %v", drained)
	}
}
