//go:build e2e

package e2e

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestAlerts has a Prometheus scrape the control plane and the pods of a mesh that accepts no plaintext, and causes
// faults: each fires its alert, and its end resolves the alert. It needs its own cluster, because it stops the
// control plane.
func TestAlerts(t *testing.T) {
	n, cp := newMesh(t, "STRICT"), &namespace{t: t, name: systemNamespace}
	own := newPod("own", "node2") // its alerts are about its own application
	own.Annotations[mesh.AnnotationPrometheusScrape] = "false"
	n.create(newPod("lost", "node1"), newPod("refused", "node2"), newPod("crashing", "node2"), own)
	guarded := n.newFleet("held", 1, "enabled", func(template *corev1.PodTemplateSpec) {
		template.Spec.Containers[0].LivenessProbe.TimeoutSeconds = 10 // with a shorter timeout, the kubelet would itself restart the container
	})
	guarded.watch()
	n.waitReady("lost", "refused", "crashing", "own")
	held := n.podsOf("held")[0]
	replica, _ := cp.leading(cp.waitReplicas())
	p := startPrometheus(t)

	of := func(pod string) string { return fmt.Sprintf("namespace=%q, pod=%q", n.name, pod) }
	for _, pod := range []string{"lost", "refused", "crashing", held} {
		for _, metric := range []string{"up{job=%q, %s}", "sonde_dpagent_session_connected{job=%q, %s}", "envoy_server_live{job=%q, %s}"} {
			p.waitOne(fmt.Sprintf(metric, "pods", of(pod)))
		}
	}
	for _, name := range cp.waitReplicas() {
		p.waitOne(fmt.Sprintf(`up{job="sonde", namespace=%q, pod=%q}`, systemNamespace, name))
	}
	p.waitOne(`up{job="apiserver"}`)
	if found, err := p.query(fmt.Sprintf("up{%s}", of("own"))); err != nil || len(found) > 0 {
		t.Errorf("a pod that is not to be scraped is: %v %v", found, err)
	}
	pass(t, 2*time.Minute) // twenty minutes for the alerts
	if found, err := p.query(`count_over_time(ALERTS{alertstate="firing"}[2m])`); err != nil || len(found) > 0 {
		t.Errorf("alerts have fired while nothing was wrong: %v %v", found, err)
	}

	heal := cp.cut(replica, "", mesh.PortPeers)
	healAgent := n.cut("lost", "", mesh.PortAgents)
	free := n.takePort("refused", mesh.PortRedirectIn)
	n.annotate(held, mesh.AnnotationLiveness, "suspended")
	guarded.setLive(held, false)
	refused := `alertname="SondeResourcesRefused", type="listener"`
	lost := fmt.Sprintf(`alertname="SondeAgentsLost", mesh=%q`, n.name)
	container := `alertname="SondeRestartsHeld", container="app", severity="warning", ` + of(held)
	peers := fmt.Sprintf(`alertname="SondeHealthCheckFails", name="peers", severity="warning", pod=%q`, replica)
	envoy := `alertname="SondeEnvoyRestarts", ` + of("crashing")
	wait(t, "the alert "+envoy, func() error {
		n.killEnvoy("crashing")
		return p.fires(envoy)
	})
	for _, matchers := range []string{refused, container, peers, lost} {
		p.waitFiring(matchers)
	}
	heal()
	healAgent()
	free()
	n.annotate(held, mesh.AnnotationLiveness, "")
	for _, matchers := range []string{envoy, refused, container, peers, lost} {
		p.waitResolved(matchers)
	}

	cp.scale("sonde-cp", 0)
	cp.waitRolledOutAs("sonde-cp", controlPlaneLabel)
	down, webhook := `alertname="SondeControlPlaneDown"`, `alertname="SondeWebhookFails", name=~".*inject.*", severity="critical"`
	wait(t, "the alert that pods cannot be created", func() error {
		_, err := cluster.client.CoreV1().Pods(n.name).Create(t.Context(), newPod("more", "node1"), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		if err == nil || !strings.Contains(err.Error(), "failed calling webhook") {
			return errors.Join(errors.New("without a control plane a pod is not refused for that"), err)
		}
		return p.fires(webhook)
	})
	p.waitFiring(down)
	cp.scale("sonde-cp", replicas)
	cp.waitReplicas()
	p.waitResolved(down)
	p.waitResolved(webhook)
}

// waitOne waits until an expression returns one sample other than 0.
func (p *prom) waitOne(expr string) {
	p.t.Helper()
	wait(p.t, expr, func() error {
		found, err := p.query(expr)
		if err == nil && (len(found) != 1 || found[0].Value == 0) {
			err = fmt.Errorf("it gives %s", found)
		}
		return err
	})
}

// killEnvoy kills the Envoy of a pod, once it runs.
func (n *namespace) killEnvoy(pod string) {
	n.t.Helper()
	p := n.pod(pod)
	n.wait("an Envoy in "+pod, func() error {
		all := n.processes(p)
		// The agent also runs the program to get its version.
		i := slices.IndexFunc(all, func(p process) bool {
			return filepath.Base(p.command[0]) == "envoy" && slices.Contains(p.command, "--drain-time-s")
		})
		if i < 0 {
			return fmt.Errorf("it runs %+v", all)
		}
		return syscall.Kill(all[i].pid, syscall.SIGKILL)
	})
}

// takePort occupies a port of Envoy in the network of a pod with another program, until the caller calls free or the
// test ends.
func (n *namespace) takePort(pod string, port int) (free func()) {
	n.t.Helper()
	agent := n.agent(n.pod(pod), false)
	agent.signal(n.t, syscall.SIGSTOP) // so that Envoy does not restart before the port is occupied
	defer agent.signal(n.t, syscall.SIGCONT)
	n.killEnvoy(pod)
	ctx, cancel := context.WithCancel(context.WithoutCancel(n.t.Context()))
	cmd := exec.CommandContext(ctx, "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", agent.pid), appProgram(n.t), "--http=:"+strconv.Itoa(port))
	if err := cmd.Start(); err != nil {
		n.t.Fatal(err)
	}
	free = func() {
		cancel()
		_ = cmd.Wait() // the error is that it was killed
	}
	n.t.Cleanup(free)
	n.wait(fmt.Sprintf("a program on port %d of %s", port, pod), func() error {
		sockets, err := exec.CommandContext(n.t.Context(), "nsenter", fmt.Sprintf("--net=/proc/%d/ns/net", agent.pid), "ss", "--listening", "--tcp", "--numeric", "--no-header").CombinedOutput()
		if err == nil && !strings.Contains(string(sockets), net.JoinHostPort("*", strconv.Itoa(port))) {
			err = fmt.Errorf("it has %s", sockets)
		}
		return err
	})
	return free
}
