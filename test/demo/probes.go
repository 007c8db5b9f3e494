package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/test/harness"
	"github.com/sonde-mesh/sonde/webhook"
)

const podIP = "127.0.0.1"

// probedPod returns a pod with a probe of each kind on a port.
func probedPod(name string, port int32) *corev1.Pod {
	at := intstr.FromInt32(port)
	ask := func(h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, TimeoutSeconds: 1}
	}
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Status:     corev1.PodStatus{PodIP: podIP},
		Spec: corev1.PodSpec{Containers: []corev1.Container{{
			Name:           "app",
			ReadinessProbe: ask(corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/healthz", Port: at}}),
			StartupProbe:   ask(corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: at}}),
			LivenessProbe:  ask(corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: port}}),
		}}},
	}
}

// prepareProbes has the injector rewrite a pod with p's application, and gives the agent of p the environment of
// kuma-sidecar.
func (s *scene) prepareProbes(p *harness.Proxy) error {
	virtual, err := s.machine.FreeAddress()
	if err != nil {
		return err
	}
	s.written = probedPod(p.Name, portNumber(p.AppAddress))
	injected, warnings, err := webhook.Inject(s.written, webhook.Options{
		Sidecar: webhook.Container, VirtualProbesPort: portNumber(virtual),
	})
	if err != nil {
		return err
	}
	if len(warnings) > 0 {
		return fmt.Errorf("inject %s: %s", p.Name, strings.Join(warnings, "; "))
	}
	s.injected, s.virtual = injected, virtual
	sidecar, err := container(injected, mesh.ContainerSidecar)
	if err != nil {
		return err
	}
	for _, arg := range sidecar.Args {
		if strings.HasPrefix(arg, "--virtual-probes-port=") {
			p.AgentArgs = append(p.AgentArgs, arg)
		}
	}
	p.AgentEnv = []string{mesh.EnvInstanceIP + "=" + podIP}
	for _, v := range sidecar.Env {
		if v.Name == mesh.EnvProbeTable {
			p.AgentEnv = append(p.AgentEnv, v.Name+"="+v.Value)
		}
	}
	return nil
}

func container(pod *corev1.Pod, name string) (*corev1.Container, error) {
	i := slices.IndexFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == name })
	if i < 0 {
		return nil, fmt.Errorf("pod %s has no container %s", pod.Name, name)
	}
	return &pod.Spec.Containers[i], nil
}

func portNumber(address string) int32 {
	_, text, _ := strings.Cut(address, ":")
	port, err := strconv.ParseUint(text, 10, 16)
	if err != nil {
		panic(err) // the address is from the harness
	}
	return int32(port)
}

// verdict is the kubelet's verdict, in its words.
type verdict string

const (
	success verdict = "Success"
	failure verdict = "Failure"
)

// finding is the result of one probe.
type finding struct {
	verdict verdict
	words   string // the reason
}

// The kinds of probes in the order of the table, and the probe of probedPod for each kind.
var (
	probeKinds = []string{"httpGet", "tcpSocket", "grpc"}
	probeOf    = []string{"readiness", "startup", "liveness"}
)

// probeNamed returns a probe of a container.
func probeNamed(c *corev1.Container, name string) *corev1.Probe {
	return map[string]*corev1.Probe{
		"readiness": c.ReadinessProbe, "startup": c.StartupProbe, "liveness": c.LivenessProbe,
	}[name]
}

// findings makes all probes of a pod at once, and returns the results in the order of probeKinds.
func findings(ctx context.Context, pod *corev1.Pod) ([]finding, error) {
	c, err := container(pod, "app")
	if err != nil {
		return nil, err
	}
	found, errs := make([]finding, len(probeKinds)), make([]error, len(probeKinds))
	var wait sync.WaitGroup
	for i, of := range probeOf {
		wait.Go(func() { found[i], errs[i] = ask(ctx, pod, c, of) })
	}
	wait.Wait()
	return found, errors.Join(errs...)
}

// compareProbes probes the application directly, as without a mesh; its Envoy, to which the redirection would lead
// the kubelet's original probes; and the handler, as the injected pod does. Both the first and the last must have the
// verdict want.
func (s *scene) compareProbes(ctx context.Context, want verdict, ofEnvoy ...verdict) (seen []string, err error) {
	pods := []*corev1.Pod{s.written, probedPod("captured", portNumber(s.b[0].Inbound)), s.injected}
	found, errs := make([][]finding, len(pods)), make([]error, len(pods))
	var wait sync.WaitGroup
	for i, pod := range pods {
		wait.Go(func() { found[i], errs[i] = findings(ctx, pod) })
	}
	wait.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	const columns = "%-10s %-16s %s %s"
	seen = []string{fmt.Sprintf(columns, "asked:", "without a mesh", pad("with Envoy's port"), "with Sonde")}
	var amiss []error
	for i, kind := range probeKinds {
		direct, envoy, handler := found[0][i], found[1][i], found[2][i]
		seen = append(seen, fmt.Sprintf(columns, kind, direct.verdict, s.judged(envoy, direct), s.judged(handler, direct)))
		if direct.verdict != want || envoy.verdict != ofEnvoy[i] || handler.verdict != want {
			amiss = append(amiss, fmt.Errorf("%s: want %s, %s, %s; reasons: %q, %q, %q",
				kind, want, ofEnvoy[i], want, direct.words, envoy.words, handler.words))
		}
	}
	for i, kind := range probeKinds {
		if envoy := found[1][i]; envoy.verdict == failure && want == success {
			seen = append(seen, fmt.Sprintf("%s at Envoy's port: %s", kind, envoy.words))
		}
	}
	return seen, errors.Join(amiss...)
}

// pad pads a verdict to its column.
func pad(verdict string) string { return fmt.Sprintf("%-18s", verdict) }

// judged returns a verdict, marked in red if it differs from the truth.
func (s *scene) judged(f, truth finding) string {
	if f.verdict != truth.verdict {
		return s.board.Wrong(pad(string(f.verdict) + " (false)"))
	}
	return pad(string(f.verdict))
}

func (s *scene) probesUp(ctx context.Context) ([]string, error) {
	return s.compareProbes(ctx, success, failure, success, failure)
}

func (s *scene) probesClosed(ctx context.Context) ([]string, error) {
	b := s.b[0]
	b.App.Kill()
	seen, err := s.compareProbes(ctx, failure, failure, success, failure)
	if err := errors.Join(err, b.StartApp(ctx)); err != nil {
		return seen, err
	}
	back, err := findings(ctx, s.injected)
	if err != nil {
		return seen, err
	}
	for i, f := range back {
		if f.verdict != success {
			return seen, fmt.Errorf("the application is back, and Sonde says of %s: %s, %s", probeKinds[i], f.verdict, f.words)
		}
	}
	return append(seen, "the application is back: Sonde says Success to all three"), s.waitEndpoints(ctx, s.b...)
}
