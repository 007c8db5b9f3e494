package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestReconfigure changes the configuration file of a running sonde-cp: a node that the autoscaler will delete stops
// being a reason to drain, and becomes one again.
func TestReconfigure(t *testing.T) {
	client := newClient(t)
	namespace(t, client, systemNamespace, nil)
	namespace(t, client, "reconfigure", nil)
	going := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "going"},
		Spec:       corev1.NodeSpec{Taints: []corev1.Taint{{Key: "ToBeDeletedByClusterAutoscaler", Effect: corev1.TaintEffectNoSchedule}}},
	}
	if _, err := client.CoreV1().Nodes().Create(t.Context(), going, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := client.CoreV1().Nodes().Delete(context.Background(), going.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	})
	pod := podOf("reconfigure", "web", func(p *corev1.Pod) {
		p.Labels = map[string]string{mesh.LabelMesh: "default"}
		p.Spec.NodeName = going.Name
		p.Spec.Volumes = []corev1.Volume{{Name: mesh.VolumeIdentity}} // marks an injected pod for the control plane
	})
	if _, err := client.CoreV1().Pods("reconfigure").Create(t.Context(), pod, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}

	p, file := startProgram(t, "drainAwareHealthz: true\n")
	draining := func(n int) { p.says(t, "/metrics", fmt.Sprintf("\nsonde_drain_proxies{reason=\"node\"} %d\n", n)) }
	draining(1)
	file("drainAwareHealthz: false\n")
	draining(0)
	file("drainAwareHealthz: true\n")
	draining(1)
}

// startProgram starts sonde-cp with a configuration file, and returns a function that rewrites the file.
func startProgram(t *testing.T, text string) (p *plane, file func(text string)) {
	t.Helper()
	directory := t.TempDir()
	program, err := harness.BuildInto(t.Context(), filepath.Join(directory, "bin"), "cmd/sonde-cp")
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(directory, "config.yaml")
	file = func(text string) {
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	file(text)
	var log strings.Builder
	p = newPlane(t)
	port := func(flag, address string) string { return fmt.Sprintf("--%s-port=%d", flag, portOf(t, address)) }
	cmd := exec.Command(program, "--store=kubernetes", "--config="+path, "--kubeconfig="+cluster.Kubeconfig, "--bind-address=127.0.0.1",
		"--peer-port=0", port("webhook", p.webhook), port("health", p.health), port("agents", p.agents), port("admin", p.admin))
	cmd.Stderr = &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(cmd.Process.Signal(syscall.SIGTERM), cmd.Wait()); err != nil || t.Failed() {
			t.Errorf("sonde-cp ended with %v\n%s", err, log.String())
		}
	})
	must.Poll(t, "the readiness of sonde-cp", p.ready)
	return p, file
}
