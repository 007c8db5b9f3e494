//go:build e2e

package e2e

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestGuardedExec has the exec probes of all pods of a Deployment fail at once. As in the seed, OpenKruise's annotation
// has the probes, and the pods have no liveness probe. They restart within the budget, at most a quarter of them.
func TestGuardedExec(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	const pods, budget = 10, 2
	f := n.newFleet("exec", pods, "enabled", func(template *corev1.PodTemplateSpec) {
		template.Annotations[mesh.AnnotationProbeContext] = fmt.Sprintf(`[{"name":"app","livenessProbe":{"exec":{"command":["/app","--call=http://127.0.0.1:%d/healthz"]},`+
			`"initialDelaySeconds":3,"timeoutSeconds":10,"periodSeconds":1,"successThreshold":1,"failureThreshold":3}}]`, portHTTP)
		c := &template.Spec.Containers[0]
		c.LivenessProbe = nil
		c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portHTTP)}} // it passes throughout
	})
	f.watch()
	f.failExec()
	system := &namespace{t: t, name: systemNamespace}
	n.wait("a held exec probe in sondectl restarts explain", func() error {
		for _, pod := range f.podsOf(f.app) {
			if text, err := system.sondectl("restarts", "explain", pod, "-n", n.name); err == nil && strings.Contains(text, "the command ended with exit code 1") {
				return nil
			}
		}
		return errors.New("no pod shows one")
	})
	f.waitHealed()
	f.check(budget)
}

// failExec has the exec probes of all pods fail, and no others.
func (f *fleet) failExec() {
	f.t.Helper()
	f.fail(false) // sets a gRPC service that no probe asks here
	for _, pod := range f.podsOf(f.app) {
		f.setHealthz(pod, http.StatusInternalServerError)
	}
}

// TestGuardedExecSeed has the annotation of the seed to the letter. The image has no shell: the agent reports that at
// each check, as the runtime would, and nothing restarts.
func TestGuardedExecSeed(t *testing.T) {
	t.Parallel()
	n := newNamespace(t, injected)
	p := newPod("clone-foo", "node2")
	p.Annotations[mesh.AnnotationGuardedLiveness] = "enabled"
	p.Annotations[mesh.AnnotationProbeContext] = `[{"name":"app","livenessProbe":{"exec":{"command":["/bin/sh","-c","/healthy.sh"]},"initialDelaySeconds":1000,"timeoutSeconds":5,"periodSeconds":100,"successThreshold":1,"failureThreshold":3}}]`
	c := &p.Spec.Containers[0]
	c.LivenessProbe, c.StartupProbe = nil, nil
	if warnings := n.create(p); len(warnings) > 0 {
		t.Errorf("warnings %q", warnings)
	}
	n.waitReady("clone-foo")
	injected := n.pod("clone-foo")
	probe := container(injected, "app").LivenessProbe
	if probe == nil || probe.HTTPGet == nil || probe.HTTPGet.Path != "/exec/app" || probe.InitialDelaySeconds != 1000 || probe.PeriodSeconds != 100 {
		t.Fatalf("the liveness probe is %+v", probe)
	}
	if start := container(injected, "app").StartupProbe; start == nil || start.Exec == nil || !slices.Contains(start.Exec.Command, "/healthy.sh") {
		t.Fatalf("the startup probe is %+v", start)
	}
	n.wait("an answer to the kubelet's request", func() error {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+mesh.JoinHostPort(injected.Status.PodIP, mesh.PortVirtualProbes)+probe.HTTPGet.Path, nil)
		if err != nil {
			return err
		}
		request.Header.Set(mesh.ProbeHeader, probe.HTTPGet.HTTPHeaders[0].Value)
		response, err := http.DefaultClient.Do(request)
		if err != nil {
			return err
		}
		text, _ := io.ReadAll(response.Body) // it is cut, which the kubelet takes for an error
		_ = response.Body.Close()
		if want := "errored: the command cannot be started: no such file or directory"; string(text) != want {
			return fmt.Errorf("it is %q, want %q", text, want)
		}
		return nil
	})
	if got := status(n.pod("clone-foo"), "app"); got.RestartCount != 0 || !got.Ready {
		t.Errorf("status of the container: %+v", got)
	}
}
