package fidelity_test

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/webhook"
)

// severalContainers are pods with more than one probe, whose probes have much in common.
func severalContainers() []testCase {
	good := func(x *exchange) {
		code := 500
		if strings.Contains(x.head, "X-Who: good\r\n") {
			code = 200
		}
		x.reply(code, "")
	}
	differing := func(p podAddress) []corev1.Container {
		return []corev1.Container{
			{Name: "a", LivenessProbe: newProbe(p, get("/same", header("X-Who", "good"))), ReadinessProbe: newProbe(p, get("/same", header("X-Who", "bad")))},
			{Name: "b", LivenessProbe: newProbe(p, get("/same", list("X-Who", "good", "X-A", "1")...)), ReadinessProbe: newProbe(p, get("/same"))},
			{Name: "c", StartupProbe: newProbe(p, get("/same", list("Host", "good", "X-Who", "good")...))},
		}
	}
	everyKind := func(p podAddress) []corev1.Container {
		grpc := newProbe(p, grpcHealth(""))
		grpc.TimeoutSeconds = 1
		return []corev1.Container{
			{Name: "a", StartupProbe: newProbe(p, tcp), LivenessProbe: grpc, ReadinessProbe: newProbe(p, get("/tcp/1"))},
			{Name: "b", ReadinessProbe: newProbe(p, get("/grpc/1/x"))},
		}
	}
	bySchemes := func(p podAddress) []corev1.Container {
		return []corev1.Container{{Name: "a", LivenessProbe: newProbe(p, get("/same"))}, {Name: "b", LivenessProbe: newProbe(p, getTLS("/same"))}}
	}
	byTimeouts := func(p podAddress) []corev1.Container {
		short, long := newProbe(p, get("/same")), newProbe(p, get("/same"))
		short.TimeoutSeconds, long.TimeoutSeconds = 1, 5
		return []corev1.Container{{Name: "a", LivenessProbe: short, ReadinessProbe: long}}
	}
	withHook := func(p podAddress) []corev1.Container {
		return []corev1.Container{{
			Name: "app", StartupProbe: newProbe(p, get("/same")), LivenessProbe: newProbe(p, tcpClosed), ReadinessProbe: newProbe(p, tcp),
			Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, get("/hook", header("Connection", "close")))},
		}}
	}
	notReady := func(p podAddress) []server {
		return []server{{port: p.app, answer: ok}, {port: p.more[0], answer: reply(503, "")}}
	}
	slow := http1(steps(pause(1.7), reply(200, "")))
	cut := says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort")
	all := []testCase{
		{name: "several containers that differ in headers", want: verdicts{success, failure, success, failure, success}, containers: differing, servers: http1(good)},
		{name: "several containers that differ in scheme", want: verdicts{success, failure}, containers: bySchemes, process: true},
		{name: "several containers that differ in timeout", want: verdicts{failure, success}, containers: byTimeouts, timing: true, servers: slow},
		{name: "several equal probes", want: verdicts{success}, containers: equalProbes, process: true},
		{name: "several kinds of probe of one port", want: verdicts{success, failure, success, success}, containers: everyKind, timing: true, lastRequest: true},
		{name: "several containers, 60 of them", want: verdicts{success}, containers: sixty, process: true},
		{name: "several containers that name their ports alike", want: verdicts{success, failure, failure}, containers: portsNamedAlike, servers: notReady, process: true},
		{name: "several kinds of everything, our sidecar an ordinary container", want: verdicts{success, failure, success}, form: webhook.Container, containers: withHook},
		{
			name: "one probe asked again and again", want: verdicts{success, failure, warning, errored, success, success}, times: 6,
			servers: http1(inTurn(ok, reply(503, ""), redirect("http://elsewhere.example/"), cut, cut, cut, reply(200, ""))),
		},
	}
	for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
		all = append(all, testCase{
			name: fmt.Sprintf("several probes of native sidecars, ours %s", form), want: verdicts{success, failure, success, success},
			form: form, unchanged: form == webhook.Container, process: true, inits: sidecarProbes,
			containers: func(p podAddress) []corev1.Container {
				return []corev1.Container{{Name: "app", LivenessProbe: newProbe(p, get("/same")), ReadinessProbe: newProbe(p, get("/same?"))}}
			},
		})
	}
	return all
}

func newProbe(p podAddress, handler probeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: handler(p), TimeoutSeconds: patience}
}

func newHook(p podAddress, handler probeHandler) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{HTTPGet: handler(p).HTTPGet}
}

func equalProbes(p podAddress) (all []corev1.Container) {
	for _, name := range []string{"a", "b", "c"} {
		same := func() *corev1.Probe { return newProbe(p, get("/same")) }
		all = append(all, corev1.Container{Name: name, StartupProbe: same(), LivenessProbe: same(), ReadinessProbe: same()})
	}
	return all
}

func sixty(p podAddress) (all []corev1.Container) {
	for i := range 60 {
		all = append(all, corev1.Container{
			Name: fmt.Sprint("c", i), StartupProbe: newProbe(p, get("/same")), LivenessProbe: newProbe(p, get(fmt.Sprint("/", i))), ReadinessProbe: newProbe(p, tcp),
		})
	}
	return all
}

func portsNamedAlike(p podAddress) (all []corev1.Container) {
	for i, number := range []int{p.app, p.closed, p.more[0]} {
		ready := newProbe(p, get("/same"))
		ready.HTTPGet.Port = intstr.FromString("web")
		all = append(all, corev1.Container{
			Name: fmt.Sprint("c", i), ReadinessProbe: ready, Ports: []corev1.ContainerPort{{Name: "web", Protocol: corev1.ProtocolUDP, ContainerPort: int32(number)}},
		})
	}
	return all
}

func sidecarProbes(p podAddress) []corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	return []corev1.Container{
		{Name: "setup", Image: "setup"},
		{Name: "proxy", RestartPolicy: &always, StartupProbe: newProbe(p, get("/same")), LivenessProbe: newProbe(p, tcpClosed)},
	}
}
