package fidelity_test

import (
	"cmp"
	"fmt"
	"iter"
	"maps"
	"net"
	"slices"
	"strconv"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/webhook"
)

// place is where a scenario's pod lives: its address, and ports of it which nobody else uses.
type place struct {
	ip string
	// app is the port that most probes ask, more are two others of the application, closed one on which nothing listens.
	app, closed int
	more        [2]int
	// virtual is the port of the handler.
	virtual int
}

// url of a port of the pod.
func (p place) url(scheme string, port int, path string) string {
	return scheme + "://" + net.JoinHostPort(p.ip, strconv.Itoa(port)) + path
}

// scenario is an application, a pod that is made for it, and what the kubelet makes of it.
type scenario struct {
	name string
	// containers of the pod, and init containers.
	containers, inits func(place) []corev1.Container
	// sites of the application.
	sites func(place) []site
	// want is the verdict of the kubelet without a mesh for each probe and hook, init containers first, then in the order of
	// the table; the last holds for all that follow.
	want []kubelet.Verdict
	// at is the pod's address, if it must be a certain one.
	at string
	// left says that the injector leaves the probe as it is: the kubelet asks the application itself.
	left bool
	// timing says that the verdict depends on how long something takes: it is tried again on a machine that is busy.
	timing bool
	// apart says that how many connections the application sees depends on time, too: the first counts.
	apart bool
	// differs says why a request cannot be the same. The verdict must be.
	differs string
	// process has the pod injected and the handler run by the real programs.
	process bool
	// form of the sidecar. Default: native.
	form webhook.Form
	// times that each probe is asked. Default 1.
	times int
}

const (
	success = kubelet.Success
	warning = kubelet.Warning
	failure = kubelet.Failure
	errored = kubelet.Errored
)

// patience is the timeout of probes that answer at once: it never comes, however busy the machine is.
const patience = 30

// kinds of probes, in the order of the table.
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

// container with one probe, of the kind that n chooses, so that each is had.
func container(n int, timeout int32, handler corev1.ProbeHandler) corev1.Container {
	c := corev1.Container{Name: "app", Image: "app"}
	probe := &corev1.Probe{ProbeHandler: handler, TimeoutSeconds: timeout}
	switch n % 3 {
	case 0:
		c.LivenessProbe = probe
	case 1:
		c.ReadinessProbe = probe
	case 2:
		c.StartupProbe = probe
	}
	return c
}

// get is a probe by HTTP of the application's port.
func get(p place, path string, headers ...corev1.HTTPHeader) corev1.ProbeHandler {
	return corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
		Path: path, Port: port(p.app), Scheme: corev1.URISchemeHTTP, HTTPHeaders: headers,
	}}
}

// getTLS is a probe by HTTPS.
func getTLS(p place, path string, headers ...corev1.HTTPHeader) corev1.ProbeHandler {
	h := get(p, path, headers...)
	h.HTTPGet.Scheme = corev1.URISchemeHTTPS
	return h
}

func tcpSocket(port intstr.IntOrString) corev1.ProbeHandler {
	return corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: port}}
}

func grpcHealth(p place, service string) corev1.ProbeHandler {
	return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.app), Service: &service}}
}

func port(n int) intstr.IntOrString { return intstr.FromInt32(int32(n)) }

// header of a probe.
func header(name, value string) corev1.HTTPHeader { return corev1.HTTPHeader{Name: name, Value: value} }

// zoo is a list of scenarios, written as short as their group allows.
type zoo []scenario

func (z *zoo) add(s scenario) { *z = append(*z, s) }

// last is the scenario that was added last.
func (z zoo) last() *scenario { return &z[len(z)-1] }

// http adds a probe of path / by HTTP.
func (z *zoo) http(name string, want kubelet.Verdict, answer func(place, *exchange)) {
	z.httpIn(name, patience, want, answer)
}

// httpIn adds one with a timeout that counts.
func (z *zoo) httpIn(name string, timeout int32, want kubelet.Verdict, answer func(place, *exchange)) {
	n := len(*z)
	z.add(scenario{
		name: name, timing: timeout < patience, want: []kubelet.Verdict{want}, process: n%12 == 0,
		containers: func(p place) []corev1.Container {
			return []corev1.Container{container(n, timeout, get(p, "/probe"))}
		},
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) { answer(p, x) }}}
		},
	})
}

// ok answers 200 to everything.
func ok(x *exchange) { x.reply(200, "ok") }

// plain is an application that answers 200.
func plain(p place) []site { return []site{{port: p.app, answer: ok}} }

// one is a pod of one container with one probe.
func one(n int, timeout int32, handler func(place) corev1.ProbeHandler) func(place) []corev1.Container {
	return func(p place) []corev1.Container { return []corev1.Container{container(n, timeout, handler(p))} }
}

// sorted goes through a map in the order of its keys: the table must come out the same each time.
func sorted[K cmp.Ordered, V any](m map[K]V) iter.Seq2[K, V] {
	return func(yield func(K, V) bool) {
		for _, key := range slices.Sorted(maps.Keys(m)) {
			if !yield(key, m[key]) {
				return
			}
		}
	}
}

// seconds of a float, for tables.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

func quoted(text string) string {
	const longest = 60
	if len(text) > longest {
		return fmt.Sprintf("%.40q… (%d bytes)", text, len(text))
	}
	return fmt.Sprintf("%q", text)
}
