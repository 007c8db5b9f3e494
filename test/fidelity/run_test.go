package fidelity_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/webhook"
)

// outcome is what came of one run of a case.
type outcome struct {
	verdicts verdicts
	// messages are the kubelet's events.
	messages []string
	// seen is what the application saw, per connection.
	seen []string
	// warnings are the injector's.
	warnings []string
}

// pod returns the case's pod, with the defaults of the API server.
func (c *testCase) pod(p podAddress) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "default", UID: "7"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c.one(p)}},
		Status:     corev1.PodStatus{PodIP: p.ip, PodIPs: []corev1.PodIP{{IP: p.ip}}},
	}
	if c.containers != nil {
		pod.Spec.Containers = c.containers(p)
	}
	if c.inits != nil {
		pod.Spec.InitContainers = c.inits(p)
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, kind := range kinds {
				get := (*corev1.HTTPGetAction)(nil)
				if probe := probeOf(&list[i], kind); probe != nil {
					get = probe.HTTPGet
				} else if hook := hookOf(&list[i], kind); hook != nil {
					get = hook.HTTPGet
				}
				if get != nil && get.Path == "" {
					get.Path = "/"
				}
			}
		}
	}
	return pod
}

// direct asks the application without a mesh.
func (c *testCase) direct(ctx context.Context, p podAddress) (*outcome, error) {
	pod := c.pod(p)
	return c.run(ctx, p, pod, pod)
}

// through asks it as the kubelet does once the pod has been injected.
func (c *testCase) through(ctx context.Context, p podAddress, handlers *handlers) (o *outcome, err error) {
	pod := c.pod(p)
	inject, serve := injectHere, handlers.here
	if c.process {
		inject, serve = handlers.inject, handlers.process
	}
	injected, warnings, err := inject(ctx, pod, webhook.Options{VirtualProbesPort: int32(p.virtual), Sidecar: c.form})
	if err != nil {
		return nil, fmt.Errorf("inject: %w", err)
	}
	stop, err := serve(ctx, injected, p)
	if err != nil {
		return nil, fmt.Errorf("start the handler: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	if o, err = c.run(ctx, p, pod, injected); err == nil {
		o.warnings = warnings
	}
	return o, err
}

// run asks what written has, as asked says it.
func (c *testCase) run(ctx context.Context, p podAddress, written, asked *corev1.Pod) (*outcome, error) {
	all := http1(ok)(p)
	if c.servers != nil {
		all = c.servers(p)
	}
	app, err := start(p, all)
	if err != nil {
		return nil, fmt.Errorf("start the application: %w", err)
	}
	defer app.end()
	k := kubelet.New()
	defer k.Close()
	o := &outcome{}
	for _, list := range [][]corev1.Container{written.Spec.InitContainers, written.Spec.Containers} {
		for i := range list {
			for _, kind := range kinds {
				if probeOf(&list[i], kind) == nil && hookOf(&list[i], kind) == nil {
					continue
				}
				container, err := find(asked, list[i].Name)
				if err != nil {
					return nil, err
				}
				for range max(c.times, 1) {
					o.ask(ctx, k, asked, container, kind)
				}
			}
		}
	}
	k.Close()
	if err := app.settle(); err != nil {
		return nil, err
	}
	o.seen = app.log()
	return o, nil
}

// ask asks one probe, or calls one hook.
func (o *outcome) ask(ctx context.Context, k *kubelet.Kubelet, pod *corev1.Pod, c *corev1.Container, kind string) {
	var verdict kubelet.Verdict
	var message string
	if hook := hookOf(c, kind); hook != nil {
		verdict, message = k.Hook(ctx, pod, *c, hook)
	} else {
		verdict, message = k.Probe(ctx, pod, *c, kind)
	}
	o.verdicts = append(o.verdicts, verdict)
	o.messages = append(o.messages, message)
}

func find(pod *corev1.Pod, name string) (*corev1.Container, error) {
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			if list[i].Name == name {
				return &list[i], nil
			}
		}
	}
	return nil, fmt.Errorf("find container %s: it is not in the pod", name)
}

// requests is what the application saw that must be the same.
func (c *testCase) requests(o *outcome) string {
	switch {
	case c.differs != "":
		return ""
	case c.lastRequest && len(o.seen) > 0:
		return lastRequest(o.seen)
	}
	return strings.Join(o.seen, "---\n")
}

// lastRequest of connections that were made until one was good.
func lastRequest(seen []string) string {
	for _, text := range slices.Backward(seen) {
		if strings.Contains(text, "HTTP/") {
			return text
		}
	}
	return seen[0]
}

// wants returns the verdict for each ask.
func (c *testCase) wants(n int) verdicts {
	want := make(verdicts, n)
	for i := range want {
		want[i] = c.want[min(i, len(c.want)-1)]
	}
	return want
}

// addressPool gives each case an address of its own.
type addressPool struct {
	mu     sync.Mutex
	prefix int
	next   int
	// from is the next port to try at each address.
	from map[string]int
}

// newAddressPool keeps out of the way of other tests, by their number, and of other runs on the machine.
func newAddressPool(test int) *addressPool {
	return &addressPool{prefix: 2 + (os.Getpid()*3+test)%250, from: map[string]int{}}
}

// take returns where a pod is, at an address that is shared if it is given.
func (ps *addressPool) take(at string) (podAddress, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := podAddress{ip: at}
	if at == "" {
		p.ip = fmt.Sprintf("127.%d.%d.%d", ps.prefix, ps.next/250, 1+ps.next%250)
		ps.next++
	}
	ports, err := ps.ports(p.ip, 5)
	if err != nil {
		return podAddress{}, err
	}
	p.app, p.closed, p.more, p.virtual = ports[0], ports[1], [2]int{ports[2], ports[3]}, ports[4]
	return p, nil
}

// ports finds free ones below those that the kernel hands out by itself.
func (ps *addressPool) ports(ip string, n int) ([]int, error) {
	const first, last = 16000, 32000
	if ps.from[ip] == 0 {
		ps.from[ip] = first + os.Getpid()*37%8000
	}
	var ports []int
	for ; len(ports) < n && ps.from[ip] < last; ps.from[ip]++ {
		l, err := net.Listen("tcp", net.JoinHostPort(ip, strconv.Itoa(ps.from[ip])))
		if err != nil {
			continue
		}
		if err := l.Close(); err != nil {
			return nil, err
		}
		ports = append(ports, ps.from[ip])
	}
	if len(ports) < n {
		return nil, fmt.Errorf("find %d free ports of %s: there are %d", n, ip, len(ports))
	}
	return ports, nil
}
