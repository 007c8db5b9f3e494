package fidelity_test

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/redirecttest"
	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/webhook"
)

// perPort asks through injected pods in mesh.ProbesPerPort mode.
type perPort struct {
	handlers *handlers
	pool     *addressPool
	kernel   *kernel
	kubelets kubelets
}

// ask runs a case. If all its probes use TCP, the pod is a network namespace with the rules of kuma-init. In other pods
// a TCP probe asks the application's port directly, where the rules would lead it.
func (m *perPort) ask(ctx context.Context, c *cases.Case, p cases.PodAddress) (o *outcome, err error) {
	if m.isForKernel(c, c.Pod(p)) {
		return m.kernel.ask(ctx, c, p, m)
	}
	pod, injected, warnings, err := m.inject(ctx, c, p)
	if err != nil {
		return nil, err
	}
	direct, err := askDirectly(pod, injected)
	if err != nil {
		return nil, err
	}
	stop, err := servePerPort(ctx, injected, c.Process)
	if err != nil {
		return nil, fmt.Errorf("start the agent: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	if o, err = run(ctx, c, p, pod, injected, m.anywhere()); err == nil {
		o.warnings, o.direct = warnings, direct
	}
	return o, err
}

// inject returns the case's pod and the injected pod.
func (m *perPort) inject(ctx context.Context, c *cases.Case, p cases.PodAddress) (pod, injected *corev1.Pod, warnings []string, err error) {
	pod = c.Pod(p)
	ports, err := m.pool.more(p.IP, ownPorts(pod))
	if err != nil {
		return nil, nil, nil, err
	}
	pod.Annotations = map[string]string{
		mesh.AnnotationVirtualProbesPort:      strconv.Itoa(p.Virtual),
		mesh.AnnotationVirtualProbesPortRange: fmt.Sprintf("%d-%d", ports[0], ports[len(ports)-1]),
	}
	inject := injectHere
	if c.Process {
		inject = m.handlers.inject
	}
	injected, warnings, err = inject(ctx, pod, webhook.Options{VirtualProbesPort: int32(p.Virtual), Sidecar: c.Form, ProbesMode: mesh.ProbesPerPort})
	if err != nil {
		return nil, nil, nil, fmt.Errorf("inject in per-port mode: %w", err)
	}
	return pod, injected, warnings, nil
}

// ownPorts returns how many additional ports a pod may need, at least 1.
func ownPorts(pod *corev1.Pod) int {
	n := 1
	for range probesIn(pod) {
		n++
	}
	return n
}

// probesIn returns the probes of a pod, without hooks.
func probesIn(pod *corev1.Pod) (all []*corev1.Probe) {
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			for _, kind := range cases.Kinds {
				if probe := cases.ProbeOf(&list[i], kind); probe != nil && list[i].Name != mesh.ContainerSidecar {
					all = append(all, probe)
				}
			}
		}
	}
	return all
}

// isForKernel reports whether a case has only TCP probes and the machine allows namespaces. The injector does not
// rewrite the probes of an Unchanged case.
func (m *perPort) isForKernel(c *cases.Case, pod *corev1.Pod) bool {
	probes := probesIn(pod)
	return m.kernel != nil && !c.Unchanged && len(probes) > 0 && !c.HasHooks() &&
		!slices.ContainsFunc(probes, func(p *corev1.Probe) bool { return p.TCPSocket == nil })
}

// askDirectly makes the TCP probes of a rewritten pod ask the application again, and reports whether there are any.
func askDirectly(pod, injected *corev1.Pod) (any bool, err error) {
	before, after := probesIn(pod), probesIn(injected)
	if len(before) != len(after) {
		return false, fmt.Errorf("the pod has %d probes before and %d after the injection", len(before), len(after))
	}
	for i, probe := range after {
		if probe.TCPSocket != nil && probe.TCPSocket.Port != before[i].TCPSocket.Port {
			probe.TCPSocket.Port, any = before[i].TCPSocket.Port, true
		}
	}
	return any, nil
}

// kernel is a node and a pod with their own network namespaces, for one case at a time.
type kernel struct {
	mu        sync.Mutex
	pod, node *redirecttest.Namespace
}

// podIPs are the addresses of the pod, by whether a case needs IPv6.
var podIPs = map[bool]string{false: "192.0.2.2", true: "2001:db8::2"}

func newKernel(t *testing.T) *kernel {
	t.Helper()
	k := &kernel{pod: redirecttest.New(t), node: redirecttest.New(t)}
	redirecttest.Join(t, k.pod, k.node, [2][]string{{podIPs[false] + "/24", podIPs[true] + "/64"}, {"192.0.2.1/24", "2001:db8::1/64"}})
	return k
}

// ask runs a case whose probes use TCP.
func (k *kernel) ask(ctx context.Context, c *cases.Case, p cases.PodAddress, m *perPort) (*outcome, error) {
	at := p
	at.IP = podIPs[p.IP == "::1"]
	pod, injected, warnings, err := m.inject(ctx, c, p)
	if err != nil {
		return nil, err
	}
	for _, pod := range []*corev1.Pod{pod, injected} {
		pod.Status.PodIP, pod.Status.PodIPs = at.IP, []corev1.PodIP{{IP: at.IP}}
	}
	setup, err := find(injected, mesh.ContainerInit)
	if err != nil {
		return nil, err
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	err = k.pod.Do(func() error {
		args := append(slices.Clone(setup.Command[1:]), setup.Args...)
		out, err := exec.CommandContext(ctx, filepath.Join(m.handlers.directory, "sonde-dp"), args...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("sonde-dp %q: %w\n%s", args, err, out)
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	o, err := run(ctx, c, at, pod, injected, places{pod: k.pod.Do, node: k.node.Do, kubelet: m.kubelets.onNode})
	if err == nil {
		o.warnings = warnings
	}
	return o, err
}
