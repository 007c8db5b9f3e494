// Package cases has the applications that are probed, their pods, and the expected results of the kubelet.
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

// Case is an application, a pod for it, and what the kubelet must find. The other files have tables of cases. To add a
// case, add a row: a name, the kubelet's verdict without a mesh, and what the application does or what the pod asks.
// Most tables have short rows that a function of the same file turns into cases. A field that such a table lacks can be
// set in a separate Case. Then
//
// \tgo test ./fidelity -run TestGoldenFidelity -case 'part of its name'
//
// runs it alone. -update instead of -case writes results.md.
type Case struct {
	Name string
	// Want is the kubelet's verdict without a mesh for each probe and hook: init containers first, then in the order of
	// the probe table. The last one is repeated for the rest.
	Want Verdicts
	// Until36 and Since38 are Want for kubelets of these minor versions, if it differs. See dpagent/probe/kubelet.go.
	Until36, Since38 Verdicts
	// probe of the only container. Default: get("/probe"). With hook set it is a lifecycle hook.
	probe probeHandler
	hook  bool
	// timeout of the probe in seconds. Default: one that is never reached. A case with a timeout is tried again on a busy
	// machine.
	timeout int32
	// servers of the application. Default: one that answers 200 to every request.
	servers servers
	// Containers, and init containers, of a pod with more than one probe, instead of probe.
	Containers, Inits func(PodAddress) []corev1.Container
	// At is the pod's address, if a certain one is needed.
	At string
	// Unchanged says that the injector does not rewrite the probe, and warns: the kubelet asks the application itself.
	Unchanged bool
	// timing says that the verdict depends on durations, although there is no timeout.
	timing bool
	// LastRequest says that the number of connections to the application also depends on time: only the last request is
	// compared.
	LastRequest bool
	// Differs says why a request cannot be the same. The verdict must still be the same.
	Differs string
	// Process uses the real programs to inject the pod and to run the handler. Every tenth case does, unless noYAML is
	// set: its pod has a character that YAML, which sondectl reads and writes, treats as a line break.
	Process, noYAML bool
	// Form of the sidecar. Default: native.
	Form webhook.Form
	// Times is how often each probe is asked. Default 1.
	Times int
	// Number of the case in its group. It selects the kind of probe or hook, so that each kind occurs.
	Number int
}

// Verdicts are the verdicts of several probes.
type Verdicts []Verdict

// patience is the timeout of probes that answer at once: it is never reached, even on a busy machine.
const patience = 30

// Timed says whether the verdict depends on time.
func (c *Case) Timed() bool { return c.timing || c.timeout > 0 }

// HasHooks says whether the case's pod has hooks that are called.
func (c *Case) HasHooks() bool {
	return slices.ContainsFunc(c.Pod(PodAddress{}).Spec.Containers, func(a corev1.Container) bool {
		return a.Lifecycle != nil
	})
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

// Wants returns the expected verdict for each request of a kubelet of a minor version.
func (c *Case) Wants(n, minor int) Verdicts {
	of := c.Want
	switch {
	case c.ByLibraries(minor):
		of = librariesOf[c.Name].want
	case minor <= 36 && c.Until36 != nil:
		of = c.Until36
	case minor >= 38 && c.Since38 != nil:
		of = c.Since38
	}
	want := make(Verdicts, n)
	for i := range want {
		want[i] = of[min(i, len(of)-1)]
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

// PodAddress is the address of a case's pod and free ports of that address.
type PodAddress struct {
	IP string
	// App is the port that most probes ask. More are two other ports of the application. Nothing listens on Closed.
	App, Closed int
	More        [2]int
	// Virtual is the port of the handler.
	Virtual int
}

// PodAt is a pod with consecutive ports from first on. Only the handler's port is separate.
func PodAt(ip string, first, virtual int) PodAddress {
	return PodAddress{ip, first, first + 3, [2]int{first + 1, first + 2}, virtual}
}

// fill replaces placeholders in a text: IP by the pod's address, OCTAL by the part after 127 in it, and PORT, OTHER,
// TLS, CLOSED and VIRTUAL by the ports App, the two of More, Closed and Virtual.
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

// get is an HTTP probe of the application's port.
func get(path string, headers ...corev1.HTTPHeader) probeHandler {
	return func(p PodAddress) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: port(p.App), Scheme: corev1.URISchemeHTTP, HTTPHeaders: headers,
		}}
	}
}

// getTLS is an HTTPS probe.
func getTLS(path string, headers ...corev1.HTTPHeader) probeHandler {
	return func(p PodAddress) corev1.ProbeHandler {
		h := get(path, headers...)(p)
		h.HTTPGet.Scheme = corev1.URISchemeHTTPS
		return h
	}
}

// tcp is a TCP probe of the application's port, tcpClosed of a port on which nothing listens.
func tcp(p PodAddress) corev1.ProbeHandler       { return tcpSocket(port(p.App)) }
func tcpClosed(p PodAddress) corev1.ProbeHandler { return tcpSocket(port(p.Closed)) }

func tcpSocket(port intstr.IntOrString) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
}

// grpcHealth is a gRPC probe.
func grpcHealth(service string) probeHandler {
	return func(p PodAddress) corev1.ProbeHandler {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.App), Service: &service}}
	}
}

func port(n int) intstr.IntOrString { return intstr.FromInt32(int32(n)) }

// header is a header of a probe.
func header(name, value string) corev1.HTTPHeader { return corev1.HTTPHeader{Name: name, Value: value} }

// seconds converts a float, for tables.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// quoted shows a text in the name of a case.
func quoted(text string) string {
	const longest = 60
	if len(text) > longest {
		return fmt.Sprintf("%.40q… (%d bytes)", text, len(text))
	}
	return fmt.Sprintf("%q", text)
}
