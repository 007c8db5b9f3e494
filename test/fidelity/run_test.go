package fidelity_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/cases"
	"github.com/sonde-mesh/sonde/webhook"
)

// outcome is the result of one run of a case.
type outcome struct {
	verdicts cases.Verdicts
	// events are the kubelet's event texts, normalised. messages are the original texts, or for a hook what the kubelet
	// logs.
	events, messages []string
	// seen is what the application saw, one text per connection.
	seen []string
	// warnings are the injector's warnings.
	warnings []string
	// direct says that TCP probes went directly to the application, where the kernel's rules would lead them in per-port
	// mode.
	direct bool
}

// direct asks the application without a mesh.
func (m *perPort) direct(ctx context.Context, c *cases.Case, p cases.PodAddress) (*outcome, error) {
	pod := c.Pod(p)
	return run(ctx, c, p, pod, pod, m.anywhere())
}

// through asks it as the kubelet does after the injection of the pod.
func (m *perPort) through(ctx context.Context, c *cases.Case, p cases.PodAddress) (o *outcome, err error) {
	pod := c.Pod(p)
	inject, serve := injectHere, m.handlers.here
	if c.Process {
		inject, serve = m.handlers.inject, m.handlers.process
	}
	injected, warnings, err := inject(ctx, pod, webhook.Options{VirtualProbesPort: int32(p.Virtual), Sidecar: c.Form})
	if err != nil {
		return nil, fmt.Errorf("inject: %w", err)
	}
	stop, err := serve(ctx, injected, p)
	if err != nil {
		return nil, fmt.Errorf("start the handler: %w", err)
	}
	defer func() { err = errors.Join(err, stop()) }()
	if o, err = run(ctx, c, p, pod, injected, m.anywhere()); err == nil {
		o.warnings = warnings
	}
	return o, err
}

// places say where the pod and its node are: each calls a function there. kubelet makes the kubelet of the node.
type places struct {
	pod, node func(func() error) error
	kubelet   func() asker
}

// anywhere means where the test runs.
func (m *perPort) anywhere() places {
	here := func(f func() error) error { return f() }
	return places{pod: here, node: here, kubelet: m.kubelets.here}
}

// run asks the probes of written in the form that asked has.
func run(ctx context.Context, c *cases.Case, p cases.PodAddress, written, asked *corev1.Pod, at places) (*outcome, error) {
	var app *cases.Application
	err := at.pod(func() (err error) {
		app, err = c.Start(p)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("start the application: %w", err)
	}
	defer app.End()
	k := at.kubelet()
	defer k.Close()
	o := &outcome{}
	for _, list := range [][]corev1.Container{written.Spec.InitContainers, written.Spec.Containers} {
		for i := range list {
			for _, kind := range cases.Kinds {
				if cases.ProbeOf(&list[i], kind) == nil && cases.HookOf(&list[i], kind) == nil {
					continue
				}
				container, err := find(asked, list[i].Name)
				if err != nil {
					return nil, err
				}
				err = at.node(func() error {
					for range max(c.Times, 1) {
						o.ask(ctx, k, asked, container, kind)
					}
					return nil
				})
				if err != nil {
					return nil, err
				}
			}
		}
	}
	k.Close()
	if err := at.pod(app.Settle); err != nil {
		return nil, err
	}
	o.seen = app.Log()
	return o, nil
}

// ask asks one probe or calls one hook.
func (o *outcome) ask(ctx context.Context, k asker, pod *corev1.Pod, c *corev1.Container, kind string) {
	var verdict, event, message string
	if cases.HookOf(c, kind) != nil {
		verdict, event, message = k.Hook(ctx, pod, *c, kind)
	} else {
		verdict, event = k.Probe(ctx, pod, *c, kind)
		message = event
	}
	o.events = append(o.events, normalise(event, pod.Status.PodIP))
	o.verdicts = append(o.verdicts, cases.Verdict(verdict))
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
	return nil, fmt.Errorf("find container %s: not in the pod", name)
}

// requests returns what the application saw and what must be the same, without the additions of other library versions.
func requests(c *cases.Case, o *outcome) string {
	seen := strings.Join(o.seen, "---\n")
	switch {
	case c.Differs != "":
		return ""
	case c.LastRequest && len(o.seen) > 0:
		seen = lastRequest(o.seen)
	}
	return byLibrary.ReplaceAllLiteralString(seen, "")
}

// byLibrary matches the version of gRPC, the compressions that it offers, and the curves that Go offers.
var byLibrary = regexp.MustCompile(`grpc-go/[^\s"]+|grpc-accept-encoding: .*\n|, curves \[.*\]`)

// lastRequest returns the last request, for connections that were repeated until one succeeded.
func lastRequest(seen []string) string {
	for _, text := range slices.Backward(seen) {
		if strings.Contains(text, "HTTP/") {
			return text
		}
	}
	return seen[0]
}

// addressPool gives each case its own address.
type addressPool struct {
	mu     sync.Mutex
	prefix int
	next   int
	// from is the next port to try at each address.
	from map[string]int
}

// newAddressPool avoids the addresses of other tests, by their number, and of other runs on the machine.
func newAddressPool(test int) *addressPool {
	return &addressPool{prefix: 2 + (os.Getpid()*3+test)%250, from: map[string]int{}}
}

// take returns the address of a new pod. If at is set, the pod shares that address.
func (ps *addressPool) take(at string) (cases.PodAddress, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	p := cases.PodAddress{IP: at}
	if at == "" {
		p.IP = fmt.Sprintf("127.%d.%d.%d", ps.prefix, ps.next/250, 1+ps.next%250)
		ps.next++
	}
	ports, err := ps.ports(p.IP, 5)
	if err != nil {
		return cases.PodAddress{}, err
	}
	p.App, p.Closed, p.More, p.Virtual = ports[0], ports[1], [2]int{ports[2], ports[3]}, ports[4]
	return p, nil
}

// more returns n more free ports of an address.
func (ps *addressPool) more(ip string, n int) ([]int, error) {
	ps.mu.Lock()
	defer ps.mu.Unlock()
	return ps.ports(ip, n)
}

// ports finds free ports below the kernel's ephemeral ports.
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
		return nil, fmt.Errorf("find %d free ports of %s: found %d", n, ip, len(ports))
	}
	return ports, nil
}
