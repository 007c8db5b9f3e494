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

// TestGuardedExecSettings has exec probes in containers that restrict their processes, or share the sidecar's PID
// namespace. The image has no shell. Each probe runs again after a restart of the container, and after one of the
// agent.
func TestGuardedExecSettings(t *testing.T) {
	t.Parallel()
	settings := map[string]func(*corev1.PodSpec){
		"restricted": func(spec *corev1.PodSpec) {
			spec.Containers[0].SecurityContext = &corev1.SecurityContext{
				RunAsNonRoot: new(true), RunAsUser: new(int64(65534)), RunAsGroup: new(int64(65534)), ReadOnlyRootFilesystem: new(true),
				AllowPrivilegeEscalation: new(false), Capabilities: &corev1.Capabilities{Drop: []corev1.Capability{"ALL"}},
				SeccompProfile: &corev1.SeccompProfile{Type: corev1.SeccompProfileTypeRuntimeDefault},
			}
		},
		"shared": func(spec *corev1.PodSpec) { spec.ShareProcessNamespace = new(true) },
	}
	for name, edit := range settings {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n := newNamespace(t, injected)
			p := newPod(name, "node2")
			p.Annotations[mesh.AnnotationGuardedLiveness], p.Annotations[mesh.AnnotationGuardedExec] = "enabled", "enabled"
			c := &p.Spec.Containers[0]
			c.LivenessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{Exec: &corev1.ExecAction{Command: []string{"/app", fmt.Sprintf("--call=http://127.0.0.1:%d/healthz", portHTTP)}}}, PeriodSeconds: 1, FailureThreshold: 2}
			c.ReadinessProbe.ProbeHandler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(portHTTP)}}
			edit(&p.Spec)
			if warnings := n.create(p); len(warnings) > 0 {
				t.Errorf("warnings %q", warnings)
			}
			n.waitReady(name)
			n.waitChecks(name)
			n.setHealthz(name, http.StatusInternalServerError)
			n.waitPod(name, "restarted and ready", func(p *corev1.Pod) error {
				if s := status(p, "app"); s.RestartCount != 1 || !s.Ready {
					return fmt.Errorf("%+v", summary(p))
				}
				return nil
			})
			n.waitChecks(name)
			n.agent(n.pod(name), false).kill(t)
			n.waitChecks(name)
			if got := status(n.pod(name), "app").RestartCount; got != 1 {
				t.Errorf("%d restarts, want one", got)
			}
		})
	}
}

// waitChecks waits until the exec probe of a pod has run three times more.
func (n *namespace) waitChecks(pod string) {
	n.t.Helper()
	first := int64(-1)
	n.wait("checks of "+pod, func() error {
		var counts map[string]int64
		if err := n.app(pod).try(http.MethodGet, "/counts", nil, &counts); err != nil {
			return err
		}
		now := counts["/healthz"]
		if first < 0 {
			first = now
		}
		if now < first+3 {
			return fmt.Errorf("%d checks, at first %d", now, first)
		}
		return nil
	})
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
