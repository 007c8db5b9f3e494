package fidelity_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/webhook"
)

// testCase is an application, a pod that is made for it, and what the kubelet makes of it. The files cases_*_test.go have
// tables of them. To add one, add a row there: a name, the kubelet's verdict without a mesh, and what the application does or
// what the pod asks. Most tables have short rows, which a function of the same file turns into cases; a field that such a
// table lacks can be set in a testCase of its own. Then
//
//	go test ./fidelity -run TestGoldenFidelity -case 'part of its name'
//
// runs it alone, and -update instead of -case writes docs/fidelity.md.
type testCase struct {
	name string
	// want is the verdict of the kubelet without a mesh for each probe and hook, init containers first, then in the order of
	// the probe table; the last holds for all that follow.
	want verdicts
	// probe of the one container. Default: get("/probe"). With hook it is a lifecycle hook.
	probe probeHandler
	hook  bool
	// timeout of the probe in seconds. Default: one that never comes. A case with a timeout is tried again on a busy machine.
	timeout int32
	// servers of the application. Default: one that answers 200 to all.
	servers servers
	// containers, and init containers, of a pod with more than one probe, instead of probe.
	containers, inits func(podAddress) []corev1.Container
	// at is the pod's address, if it must be a certain one.
	at string
	// unchanged says that the injector does not rewrite the probe, with a warning: the kubelet asks the application itself.
	unchanged bool
	// timing says that the verdict depends on how long something takes, although there is no timeout.
	timing bool
	// lastRequest says that how many connections the application sees depends on time, too: only the last request counts.
	lastRequest bool
	// differs says why a request cannot be the same. The verdict must be.
	differs string
	// process has the pod injected and the handler run by the real programs, as every tenth case is unless it is noYAML: its pod
	// has a character that YAML, which sondectl reads and writes, takes for the end of a line.
	process, noYAML bool
	// form of the sidecar. Default: native.
	form webhook.Form
	// times that each probe is asked. Default 1.
	times int
	// number of the case in its group. It decides which kind of probe or hook it is, so that each is had.
	number int
}

type verdicts []kubelet.Verdict

const (
	success = kubelet.Success
	warning = kubelet.Warning
	failure = kubelet.Failure
	errored = kubelet.Errored
)

// patience is the timeout of probes that answer at once: it never comes, however busy the machine is.
const patience = 30

// timed says whether the verdict depends on time.
func (c *testCase) timed() bool { return c.timing || c.timeout > 0 }

// one returns the pod's container if it has only one, with one probe or hook.
func (c *testCase) one(p podAddress) corev1.Container {
	handler := get("/probe")(p)
	if c.probe != nil {
		handler = c.probe(p)
	}
	app := corev1.Container{Name: "app", Image: "app"}
	if c.hook {
		hook := &corev1.LifecycleHandler{HTTPGet: handler.HTTPGet}
		if app.Lifecycle = (&corev1.Lifecycle{PostStart: hook}); c.number%2 == 1 {
			app.Lifecycle = &corev1.Lifecycle{PreStop: hook}
		}
		return app
	}
	probe := &corev1.Probe{ProbeHandler: handler, TimeoutSeconds: cmp.Or(c.timeout, patience)}
	switch c.number % 3 {
	case 0:
		app.LivenessProbe = probe
	case 1:
		app.ReadinessProbe = probe
	case 2:
		app.StartupProbe = probe
	}
	return app
}

// kinds of probes and hooks, in the order of the probe table.
var kinds = []string{"startup", "liveness", "readiness", "postStart", "preStop"}

// probeOf returns a container's probe of a kind.
func probeOf(c *corev1.Container, kind string) *corev1.Probe {
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

// hookOf returns a container's hook of a kind.
func hookOf(c *corev1.Container, kind string) *corev1.LifecycleHandler {
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

// podAddress is where the pod of a case is: its address, and ports of it that nobody else uses.
type podAddress struct {
	ip string
	// app is the port that most probes ask, more are two others of the application, closed one on which nothing listens.
	app, closed int
	more        [2]int
	// virtual is the port of the handler.
	virtual int
}

// fill replaces words of a text: IP by the pod's address, OCTAL by what follows 127 in it, and PORT, OTHER, TLS, CLOSED and VIRTUAL
// by ports of it: app, the two of more, closed and virtual.
func (p podAddress) fill(text string) string {
	ip := p.ip
	if strings.Contains(ip, ":") {
		ip = "[" + ip + "]"
	}
	return strings.NewReplacer(
		"IP", ip, "OCTAL", strings.TrimPrefix(ip, "127"),
		"PORT", strconv.Itoa(p.app), "OTHER", strconv.Itoa(p.more[0]), "TLS", strconv.Itoa(p.more[1]),
		"CLOSED", strconv.Itoa(p.closed), "VIRTUAL", strconv.Itoa(p.virtual),
	).Replace(text)
}

// probeHandler is what a probe asks of a pod.
type probeHandler func(podAddress) corev1.ProbeHandler

// get is a probe by HTTP of the application's port.
func get(path string, headers ...corev1.HTTPHeader) probeHandler {
	return func(p podAddress) corev1.ProbeHandler {
		return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
			Path: path, Port: port(p.app), Scheme: corev1.URISchemeHTTP, HTTPHeaders: headers,
		}}
	}
}

// getTLS is a probe by HTTPS.
func getTLS(path string, headers ...corev1.HTTPHeader) probeHandler {
	return func(p podAddress) corev1.ProbeHandler {
		h := get(path, headers...)(p)
		h.HTTPGet.Scheme = corev1.URISchemeHTTPS
		return h
	}
}

// tcp is a probe by TCP of the application's port, tcpClosed of one on which nothing listens.
func tcp(p podAddress) corev1.ProbeHandler       { return tcpSocket(port(p.app)) }
func tcpClosed(p podAddress) corev1.ProbeHandler { return tcpSocket(port(p.closed)) }

func tcpSocket(port intstr.IntOrString) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
}

// grpcHealth is a probe by gRPC.
func grpcHealth(service string) probeHandler {
	return func(p podAddress) corev1.ProbeHandler {
		return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.app), Service: &service}}
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
