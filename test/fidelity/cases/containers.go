package cases

import (
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/webhook"
)

// severalContainers are pods with several probes that have much in common.
func severalContainers() []Case {
	good := func(x *exchange) {
		code := 500
		if strings.Contains(x.head, "X-Who: good\r\n") {
			code = 200
		}
		x.reply(code, "")
	}
	differing := func(p PodAddress) []corev1.Container {
		return []corev1.Container{
			{
				Name: "a", LivenessProbe: newProbe(p, get("/same", header("X-Who", "good"))),
				ReadinessProbe: newProbe(p, get("/same", header("X-Who", "bad"))),
			},
			{
				Name: "b", LivenessProbe: newProbe(p, get("/same", list("X-Who", "good", "X-A", "1")...)),
				ReadinessProbe: newProbe(p, get("/same")),
			},
			{Name: "c", StartupProbe: newProbe(p, get("/same", list("Host", "good", "X-Who", "good")...))},
		}
	}
	everyKind := func(p PodAddress) []corev1.Container {
		grpc := newProbe(p, grpcHealth(""))
		grpc.TimeoutSeconds = 1
		return []corev1.Container{
			{Name: "a", StartupProbe: newProbe(p, tcp), LivenessProbe: grpc, ReadinessProbe: newProbe(p, get("/tcp/1"))},
			{Name: "b", ReadinessProbe: newProbe(p, get("/grpc/1/x"))},
		}
	}
	bySchemes := func(p PodAddress) []corev1.Container {
		return []corev1.Container{
			{Name: "a", LivenessProbe: newProbe(p, get("/same"))}, {Name: "b", LivenessProbe: newProbe(p, getTLS("/same"))},
		}
	}
	byTimeouts := func(p PodAddress) []corev1.Container {
		short, long := newProbe(p, get("/same")), newProbe(p, get("/same"))
		short.TimeoutSeconds, long.TimeoutSeconds = 1, 5
		return []corev1.Container{{Name: "a", LivenessProbe: short, ReadinessProbe: long}}
	}
	withHook := func(p PodAddress) []corev1.Container {
		return []corev1.Container{{
			Name: "app", StartupProbe: newProbe(p, get("/same")), LivenessProbe: newProbe(p, tcpClosed), ReadinessProbe: newProbe(p, tcp),
			Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, get("/hook", header("Connection", "close")))},
		}}
	}
	notReady := func(p PodAddress) []server {
		return []server{{port: p.App, answer: ok}, {port: p.More[0], answer: reply(503, "")}}
	}
	slow := http1(steps(pause(1.7), reply(200, "")))
	cut := says("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort")
	all := []Case{
		{Name: "several containers that differ in headers", Want: Verdicts{Success, Failure, Success, Failure, Success}, Containers: differing, servers: http1(good)},
		{Name: "several containers that differ in scheme", Want: Verdicts{Success, Failure}, Containers: bySchemes, Process: true},
		{Name: "several containers that differ in timeout", Want: Verdicts{Failure, Success}, Containers: byTimeouts, timing: true, servers: slow},
		{Name: "several equal probes", Want: Verdicts{Success}, Containers: equalProbes, Process: true},
		{Name: "several kinds of probe of one port", Want: Verdicts{Success, Failure, Success, Success}, Containers: everyKind, timing: true, LastRequest: true},
		{Name: "several containers, 60 of them", Want: Verdicts{Success}, Containers: sixty, Process: true},
		{Name: "several containers that name their ports alike", Want: Verdicts{Success, Failure, Failure}, Containers: portsNamedAlike, servers: notReady, Process: true},
		{Name: "several kinds of everything, our sidecar an ordinary container", Want: Verdicts{Success, Failure, Success}, Form: webhook.Container, Containers: withHook},
		{
			Name: "one probe asked again and again", Want: Verdicts{Success, Failure, Warning, Errored, Success, Success}, Times: 6,
			servers: http1(inTurn(ok, reply(503, ""), redirect("http://elsewhere.example/"), cut, cut, cut, reply(200, ""))),
		},
	}
	for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
		all = append(all, Case{
			Name: fmt.Sprintf("several probes of native sidecars, ours %s", form), Want: Verdicts{Success, Failure, Success, Success},
			Form: form, Unchanged: form == webhook.Container, Process: true, Inits: sidecarProbes,
			Containers: func(p PodAddress) []corev1.Container {
				return []corev1.Container{
					{Name: "app", LivenessProbe: newProbe(p, get("/same")), ReadinessProbe: newProbe(p, get("/same?"))},
				}
			},
		})
	}
	return all
}

func newProbe(p PodAddress, handler probeHandler) *corev1.Probe {
	return &corev1.Probe{ProbeHandler: handler(p), TimeoutSeconds: patience}
}

func newHook(p PodAddress, handler probeHandler) *corev1.LifecycleHandler {
	return &corev1.LifecycleHandler{HTTPGet: handler(p).HTTPGet}
}

func equalProbes(p PodAddress) (all []corev1.Container) {
	for _, name := range []string{"a", "b", "c"} {
		same := func() *corev1.Probe { return newProbe(p, get("/same")) }
		all = append(all, corev1.Container{Name: name, StartupProbe: same(), LivenessProbe: same(), ReadinessProbe: same()})
	}
	return all
}

func sixty(p PodAddress) (all []corev1.Container) {
	for i := range 60 {
		all = append(all, corev1.Container{
			Name: fmt.Sprint("c", i), StartupProbe: newProbe(p, get("/same")),
			LivenessProbe: newProbe(p, get(fmt.Sprint("/", i))), ReadinessProbe: newProbe(p, tcp),
		})
	}
	return all
}

func portsNamedAlike(p PodAddress) (all []corev1.Container) {
	for i, number := range []int{p.App, p.Closed, p.More[0]} {
		ready := newProbe(p, get("/same"))
		ready.HTTPGet.Port = intstr.FromString("web")
		all = append(all, corev1.Container{
			Name: fmt.Sprint("c", i), ReadinessProbe: ready, Ports: []corev1.ContainerPort{{Name: "web", Protocol: corev1.ProtocolUDP, ContainerPort: int32(number)}},
		})
	}
	return all
}

func sidecarProbes(p PodAddress) []corev1.Container {
	always := corev1.ContainerRestartPolicyAlways
	return []corev1.Container{
		{Name: "setup", Image: "setup"},
		{Name: "proxy", RestartPolicy: &always, StartupProbe: newProbe(p, get("/same")), LivenessProbe: newProbe(p, tcpClosed)},
	}
}
