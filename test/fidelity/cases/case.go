// Package cases has the applications that probes are tried with, the pods that ask them, and what a kubelet makes of each.
package cases

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/webhook"
)

// Case is an application, a pod that is made for it, and what the kubelet makes of it. The other files have tables of them. To add one, add a row there: a name, the kubelet's verdict without a mesh, and what the application does or
// what the pod asks. Most tables have short rows, which a function of the same file turns into cases; a field that such a
// table lacks can be set in a Case of its own. Then
//
//	go test ./fidelity -run TestGoldenFidelity -case 'part of its name'
//
// runs it alone, and -update instead of -case writes docs/fidelity.md.
type Case struct {
	Name string
	// Want is the verdict of the kubelet without a mesh for each probe and hook, init containers first, then in the order of
	// the probe table; the last holds for all that follow.
	Want Verdicts
	// probe of the one container. Default: get("/probe"). With hook it is a lifecycle hook.
	probe probeHandler
	hook  bool
	// timeout of the probe in seconds. Default: one that never comes. A case with a timeout is tried again on a busy machine.
	timeout int32
	// servers of the application. Default: one that answers 200 to all.
	servers servers
	// Containers, and init containers, of a pod with more than one probe, instead of probe.
	Containers, Inits func(PodAddress) []corev1.Container
	// At is the pod's address, if it must be a certain one.
	At string
	// Unchanged says that the injector does not rewrite the probe, with a warning: the kubelet asks the application itself.
	Unchanged bool
	// timing says that the verdict depends on how long something takes, although there is no timeout.
	timing bool
	// LastRequest says that how many connections the application sees depends on time, too: only the last request counts.
	LastRequest bool
	// Differs says why a request cannot be the same. The verdict must be.
	Differs string
	// Process has the pod injected and the handler run by the real programs, as every tenth case is unless it is noYAML: its pod
	// has a character that YAML, which sondectl reads and writes, takes for the end of a line.
	Process, noYAML bool
	// Form of the sidecar. Default: native.
	Form webhook.Form
	// Times that each probe is asked. Default 1.
	Times int
	// Number of the case in its group. It decides which kind of probe or hook it is, so that each is had.
	Number int
}

// Verdicts are those of several probes.
type Verdicts []Verdict

// patience is the timeout of probes that answer at once: it never comes, however busy the machine is.
const patience = 30

// Timed says whether the verdict depends on time.
func (c *Case) Timed() bool { return c.timing || c.timeout > 0 }

// HasHooks says whether the case's pod has hooks that are called.
func (c *Case) HasHooks() bool {
	return slices.ContainsFunc(c.Pod(PodAddress{}).Spec.Containers, func(a corev1.Container) bool { return a.Lifecycle != nil })
}

// one returns the pod's container if it has only one, with one probe or hook.
func (c *Case) one(p PodAddress) corev1.Container {
	handler := get("/probe")(p)
	if c.probe != nil {
		handler = c.probe(p)
	}
	app := corev1.Container{Name: "app", Image: "app"}
	if c.hook {
		hook := &corev1.LifecycleHandler{HTTPGet: handler.HTTPGet}
		if app.Lifecycle = (&corev1.Lifecycle{PostStart: hook}); c.Number%2 == 1 {
			app.Lifecycle = &corev1.Lifecycle{PreStop: hook}
		}
		return app
	}
	probe := &corev1.Probe{ProbeHandler: handler, TimeoutSeconds: cmp.Or(c.timeout, patience)}
	switch c.Number % 3 {
	case 0:
		app.LivenessProbe = probe
	case 1:
		app.ReadinessProbe = probe
	case 2:
		app.StartupProbe = probe
	}
	return app
}

// Pod returns the case's pod, with the defaults of the API server.
func (c *Case) Pod(p PodAddress) *corev1.Pod {
	pod := &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Name: "app", Namespace: "default", UID: "7"},
		Spec:       corev1.PodSpec{Containers: []corev1.Container{c.one(p)}},
		Status:     corev1.PodStatus{PodIP: p.IP, PodIPs: []corev1.PodIP{{IP: p.IP}}},
	}
	if c.Containers != nil {
		pod.Spec.Containers = c.Containers(p)
	}
	if c.Inits != nil {
		pod.Spec.InitContainers = c.Inits(p)
	}
	for _, list := range [][]corev1.Container{pod.Spec.Containers, pod.Spec.InitContainers} {
		for i := range list {
			for _, kind := range Kinds {
				get := (*corev1.HTTPGetAction)(nil)
				if probe := ProbeOf(&list[i], kind); probe != nil {
					get = probe.HTTPGet
				} else if hook := HookOf(&list[i], kind); hook != nil {
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

// Wants returns the verdict for each ask.
func (c *Case) Wants(n int) Verdicts {
	want := make(Verdicts, n)
	for i := range want {
		want[i] = c.Want[min(i, len(c.Want)-1)]
	}
	return want
}

// Kinds of probes and hooks, in the order of the probe table.
var Kinds = []string{"startup", "liveness", "readiness", "postStart", "preStop"}

// ProbeOf returns a container's probe of a kind.
func ProbeOf(c *corev1.Container, kind string) *corev1.Probe {
	switch kind {
	case "startup":
		return c.StartupProbe
	case "liveness":
		return c.LivenessProbe
	case "readiness":
		return c.ReadinessProbe
	}
	return nil
}

// HookOf returns a container's hook of a kind.
func HookOf(c *corev1.Container, kind string) *corev1.LifecycleHandler {
	switch {
	case c.Lifecycle == nil:
		return nil
	case kind == "postStart":
		return c.Lifecycle.PostStart
	case kind == "preStop":
		return c.Lifecycle.PreStop
	}
	return nil
}

// PodAddress is where the pod of a case is: its address, and ports of it that nobody else uses.
type PodAddress struct {
	IP string
	// App is the port that most probes ask, More are two others of the application, Closed one on which nothing listens.
	App, Closed int
	More        [2]int
	// Virtual is the port of the handler.
	Virtual int
}

// PodAt is a pod with an address whose ports follow one another, from first on, but for that of the handler.
func PodAt(ip string, first, virtual int) PodAddress {
	return PodAddress{ip, first, first + 3, [2]int{first + 1, first + 2}, virtual}
}

// fill replaces words of a text: IP by the pod's address, OCTAL by what follows 127 in it, and PORT, OTHER, TLS, CLOSED and VIRTUAL
// by ports of it: app, the two of more, closed and virtual.
func (p PodAddress) fill(text string) string {
	ip := p.IP
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return strings.NewReplacer(
		"IP", ip, "OCTAL", strings.TrimPrefix(ip, "127"),
		"PORT", strconv.Itoa(p.App), "OTHER", strconv.Itoa(p.More[0]), "TLS", strconv.Itoa(p.More[1]),
		"CLOSED", strconv.Itoa(p.Closed), "VIRTUAL", strconv.Itoa(p.Virtual),
	).Replace(text)
}

// probeHandler is what a probe asks of a pod.
type probeHandler func(PodAddress) corev1.ProbeHandler

// get is a probe by HTTP of the application's port.
func get(path string, headers ...corev1.HTTPHeader) probeHandler {
	return func(p PodAddress) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: port(p.App), Scheme: corev1.URISchemeHTTP, HTTPHeaders: headers,
		}}
	}
}

// getTLS is a probe by HTTPS.
func getTLS(path string, headers ...corev1.HTTPHeader) probeHandler {
	return func(p PodAddress) corev1.ProbeHandler {
		h := get(path, headers...)(p)
		h.HTTPGet.Scheme = corev1.URISchemeHTTPS
		return h
	}
}

// tcp is a probe by TCP of the application's port, tcpClosed of one on which nothing listens.
func tcp(p PodAddress) corev1.ProbeHandler       { return tcpSocket(port(p.App)) }
func tcpClosed(p PodAddress) corev1.ProbeHandler { return tcpSocket(port(p.Closed)) }

func tcpSocket(port intstr.IntOrString) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
}

// grpcHealth is a probe by gRPC.
func grpcHealth(service string) probeHandler {
	return func(p PodAddress) corev1.ProbeHandler {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.App), Service: &service}}
	}
}

func port(n int) intstr.IntOrString { return intstr.FromInt32(int32(n)) }

// header of a probe.
func header(name, value string) corev1.HTTPHeader { return corev1.HTTPHeader{Name: name, Value: value} }

// seconds of a float, for tables.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// quoted shows a text in a case's name.
func quoted(text string) string {
	const longest = 60
	if len(text) > longest {
		return fmt.Sprintf("%.40q… (%d bytes)", text, len(text))
	}
	return fmt.Sprintf("%q", text)
}
