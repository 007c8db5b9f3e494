package fidelity_test

import (
	"context"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
	"github.com/sonde-mesh/sonde/webhook"
)

// tcps is a TCP probe of each kind of port.
func tcps() (z zoo) {
	add := func(name string, want kubelet.Verdict, timeout int32, target func(place) int, s func(place) []site) {
		n := len(z)
		z.add(scenario{
			name: "TCP " + name, want: []kubelet.Verdict{want}, timing: timeout < patience || strings.Contains(name, "soon"), process: n < 2,
			containers: one(n, timeout, func(p place) corev1.ProbeHandler { return tcpSocket(port(target(p))) }), sites: s,
		})
	}
	connection := func(f func(*exchange)) func(place) []site {
		return func(p place) []site { return []site{{port: p.app, connection: f}} }
	}
	app := func(p place) int { return p.app }
	add("open", success, patience, app, connection((*exchange).hang))
	add("refused", failure, patience, func(p place) int { return p.closed }, plain)
	add("open, closes at once", success, patience, app, connection((*exchange).close))
	add("open, resets soon", success, patience, app, connection(func(x *exchange) {
		if x.wait(200 * time.Millisecond) { // sooner, and the kubelet may or may not see it
			x.reset()
		}
	}))
	add("open, server speaks first", success, patience, app, connection(func(x *exchange) {
		x.raw("220 hello\r\n")
		x.hang()
	}))
	add("open, what the server reads", success, patience, app, connection(func(x *exchange) {
		buffer := make([]byte, 100)
		n, _ := x.conn.Read(buffer) // the end, or a reset
		x.note("read %q\n", buffer[:n])
	}))
	add("late, after the probe", failure, patience, app, func(p place) []site {
		return []site{{port: p.app, late: time.Hour, answer: ok}}
	})
	add("open, never accepted", success, patience, app, func(p place) []site {
		return []site{{port: p.app, listen: listenDeaf, connection: (*exchange).hang}}
	})
	add("backlog full", failure, 1, app, func(p place) []site {
		return []site{{port: p.app, listen: listenFull, connection: (*exchange).hang}}
	})
	return z
}

// listenDeaf makes a listener that accepts nothing.
func listenDeaf(address string) (net.Listener, error) {
	l, err := listenSoon(address)
	return &fullListener{Listener: l, ended: make(chan struct{})}, err
}

// listenFull makes a listener that accepts nothing, with a queue that is full.
func listenFull(address string) (net.Listener, error) {
	l, err := listenSoon(address)
	if err != nil {
		return nil, err
	}
	full := &fullListener{Listener: l, ended: make(chan struct{})}
	if err := shorten(l.(*net.TCPListener)); err != nil {
		return nil, err
	}
	for range 10 {
		dialer := net.Dialer{Timeout: 300 * time.Millisecond}
		conn, err := dialer.DialContext(context.Background(), "tcp", address)
		if err != nil {
			return full, nil //nolint:nilerr // no more fit in, which is what was wanted
		}
		full.conns = append(full.conns, conn)
	}
	return nil, fmt.Errorf("fill the backlog of %s: it takes more", address)
}

type fullListener struct {
	net.Listener
	conns []net.Conn
	ended chan struct{}
}

func (l *fullListener) Accept() (net.Conn, error) {
	<-l.ended
	return nil, net.ErrClosed
}

func (l *fullListener) Close() error {
	select {
	case <-l.ended:
	default:
		close(l.ended)
		for _, conn := range l.conns {
			_ = conn.Close() // it was never accepted
		}
	}
	return l.Listener.Close()
}

// ports is a probe of a named port, of another host, and of what cannot be found.
func ports() (z zoo) {
	named := func(name string, want kubelet.Verdict, left bool, target string, handler func(place, intstr.IntOrString) corev1.ProbeHandler) {
		z.add(scenario{
			name: "port " + name, want: []kubelet.Verdict{want}, left: left,
			containers: func(p place) []corev1.Container {
				app := container(len(name), patience, handler(p, intstr.FromString(strings.ReplaceAll(target, "APP", strconv.Itoa(p.app)))))
				app.Ports = []corev1.ContainerPort{
					{Name: "metrics", ContainerPort: int32(p.more[0])}, {Name: "web", ContainerPort: int32(p.app)}, {Name: "shut", ContainerPort: int32(p.closed)},
				}
				other := corev1.Container{Name: "other", Ports: []corev1.ContainerPort{{Name: "theirs", ContainerPort: int32(p.app)}, {Name: "web", ContainerPort: int32(p.closed)}}}
				return []corev1.Container{other, app}
			},
			sites: plain,
		})
	}
	http1 := func(p place, target intstr.IntOrString) corev1.ProbeHandler {
		h := get(p, "/probe")
		h.HTTPGet.Port = target
		return h
	}
	tcp := func(_ place, target intstr.IntOrString) corev1.ProbeHandler { return tcpSocket(target) }
	for name, handler := range sorted(map[string]func(place, intstr.IntOrString) corev1.ProbeHandler{"HTTP": http1, "TCP": tcp}) {
		named(name+" by name", success, false, "web", handler)
		named(name+" by the name of a closed one", failure, false, "shut", handler)
		named(name+" by an unknown name", errored, true, "nosuch", handler)
		named(name+" by another container's name", errored, true, "theirs", handler)
		named(name+" by a number in quotes", success, true, "APP", handler)
	}
	host := func(name string, want kubelet.Verdict, h string, tcp bool) {
		z.add(scenario{
			name: "host " + name, want: []kubelet.Verdict{want}, left: true,
			containers: func(p place) []corev1.Container {
				handler, target := get(p, "/probe"), strings.ReplaceAll(h, "IP", p.ip)
				handler.HTTPGet.Host = target
				if tcp {
					handler = corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Host: target, Port: port(p.app)}}
				}
				return []corev1.Container{container(len(name), 5, handler)}
			},
			sites: plain,
		})
	}
	host("of the pod, HTTP", success, "IP", false)
	host("of the pod, TCP", success, "IP", true)
	host("of another address, HTTP", failure, "127.0.0.253", false)
	host("of another address, TCP", failure, "127.0.0.253", true)
	host("of an unknown name, HTTP", failure, "nosuch.invalid", false)
	host("of an unknown name, TCP", failure, "nosuch.invalid", true)
	host("that is none, HTTP", errored, "a b", false)
	return z
}

// several is a pod whose probes have much in common.
func several() (z zoo) {
	probe := func(timeout int32, h corev1.ProbeHandler) *corev1.Probe {
		return &corev1.Probe{ProbeHandler: h, TimeoutSeconds: timeout}
	}
	z.add(scenario{
		name: "several containers that differ in headers", want: []kubelet.Verdict{success, failure, success, failure, success},
		containers: func(p place) []corev1.Container {
			return []corev1.Container{
				{Name: "a", LivenessProbe: probe(patience, get(p, "/same", header("X-Who", "good"))), ReadinessProbe: probe(patience, get(p, "/same", header("X-Who", "bad")))},
				{Name: "b", LivenessProbe: probe(patience, get(p, "/same", header("X-Who", "good"), header("X-A", "1"))), ReadinessProbe: probe(patience, get(p, "/same"))},
				{Name: "c", StartupProbe: probe(patience, get(p, "/same", header("Host", "good"), header("X-Who", "good")))},
			}
		},
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				code := 500
				if strings.Contains(x.head, "X-Who: good\r\n") {
					code = 200
				}
				x.reply(code, "")
			}}}
		},
	})
	z.add(scenario{
		name: "several containers that differ in scheme", want: []kubelet.Verdict{success, failure}, process: true,
		containers: func(p place) []corev1.Container {
			return []corev1.Container{
				{Name: "a", LivenessProbe: probe(patience, get(p, "/same"))}, {Name: "b", LivenessProbe: probe(patience, getTLS(p, "/same"))},
			}
		},
		sites: plain,
	})
	z.add(scenario{
		name: "several containers that differ in timeout", want: []kubelet.Verdict{failure, success}, timing: true,
		containers: func(p place) []corev1.Container {
			return []corev1.Container{{Name: "a", LivenessProbe: probe(1, get(p, "/same")), ReadinessProbe: probe(5, get(p, "/same"))}}
		},
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				if x.wait(seconds(1.7)) {
					x.reply(200, "")
				}
			}}}
		},
	})
	z.add(scenario{
		name: "several equal probes", want: []kubelet.Verdict{success}, process: true,
		containers: func(p place) []corev1.Container {
			all := func(name string) corev1.Container {
				same := func() *corev1.Probe { return probe(patience, get(p, "/same")) }
				return corev1.Container{Name: name, StartupProbe: same(), LivenessProbe: same(), ReadinessProbe: same()}
			}
			return []corev1.Container{all("a"), all("b"), all("c")}
		},
		sites: plain,
	})
	z.add(scenario{
		name: "several kinds of probe of one port", want: []kubelet.Verdict{success, failure, success, success},
		containers: func(p place) []corev1.Container {
			return []corev1.Container{
				{Name: "a", StartupProbe: probe(patience, tcpSocket(port(p.app))), LivenessProbe: probe(1, grpcHealth(p, "")), ReadinessProbe: probe(patience, get(p, "/tcp/1"))},
				{Name: "b", ReadinessProbe: probe(patience, get(p, "/grpc/1/x"))},
			}
		},
		sites: plain, timing: true, apart: true,
	})
	z.add(scenario{
		name: "several containers, 60 of them", want: []kubelet.Verdict{success}, process: true,
		containers: func(p place) (list []corev1.Container) {
			for i := range 60 {
				list = append(list, corev1.Container{
					Name: fmt.Sprint("c", i), StartupProbe: probe(patience, get(p, "/same")), LivenessProbe: probe(patience, get(p, fmt.Sprint("/", i))),
					ReadinessProbe: probe(patience, tcpSocket(port(p.app))),
				})
			}
			return list
		},
		sites: plain,
	})
	z.add(scenario{
		name: "several containers that name their ports alike", want: []kubelet.Verdict{success, failure, failure}, process: true,
		containers: func(p place) (list []corev1.Container) {
			for i, number := range []int{p.app, p.closed, p.more[0]} {
				g := get(p, "/same")
				g.HTTPGet.Port = intstr.FromString("web")
				list = append(list, corev1.Container{
					Name: fmt.Sprint("c", i), ReadinessProbe: probe(patience, g),
					Ports: []corev1.ContainerPort{{Name: "web", Protocol: corev1.ProtocolUDP, ContainerPort: int32(number)}},
				})
			}
			return list
		},
		sites: func(p place) []site {
			return []site{{port: p.app, answer: ok}, {port: p.more[0], answer: func(x *exchange) { x.reply(503, "") }}}
		},
	})
	always := corev1.ContainerRestartPolicyAlways
	for _, form := range []webhook.Form{webhook.Native, webhook.Container} {
		z.add(scenario{
			name: fmt.Sprintf("several probes of native sidecars, ours %s", form), want: []kubelet.Verdict{success, failure, success, success},
			form: form, left: form == webhook.Container, process: true,
			inits: func(p place) []corev1.Container {
				return []corev1.Container{
					{Name: "setup", Image: "setup"},
					{Name: "proxy", RestartPolicy: &always, StartupProbe: probe(patience, get(p, "/same")), LivenessProbe: probe(patience, tcpSocket(port(p.closed)))},
				}
			},
			containers: func(p place) []corev1.Container {
				return []corev1.Container{{Name: "app", LivenessProbe: probe(patience, get(p, "/same")), ReadinessProbe: probe(patience, get(p, "/same?"))}}
			},
			sites: plain,
		})
	}
	z.add(scenario{
		name: "several kinds of everything, our sidecar an ordinary container", want: []kubelet.Verdict{success, failure, success},
		form: webhook.Container,
		containers: func(p place) []corev1.Container {
			return []corev1.Container{{
				Name: "app", StartupProbe: probe(patience, get(p, "/same")), LivenessProbe: probe(patience, tcpSocket(port(p.closed))), ReadinessProbe: probe(patience, tcpSocket(port(p.app))),
				Lifecycle: &corev1.Lifecycle{PostStart: &corev1.LifecycleHandler{HTTPGet: get(p, "/hook", header("Connection", "close")).HTTPGet}},
			}}
		},
		sites: plain,
	})
	z.add(scenario{
		name: "one probe asked again and again", want: []kubelet.Verdict{success, failure, warning, errored, success, success}, times: 6,
		containers: one(0, patience, func(p place) corev1.ProbeHandler { return get(p, "/probe") }),
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				switch x.n {
				case 2:
					x.reply(503, "")
				case 3:
					x.reply(302, "", "Location: http://elsewhere.example/")
				case 4, 5, 6:
					x.raw("HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nshort")
					x.close()
				default:
					x.reply(200, "")
				}
			}}}
		},
	})
	return z
}

// addresses are pods elsewhere than where the others are.
func addresses() (z zoo) {
	at := func(name, ip string, want kubelet.Verdict, handler func(place) corev1.ProbeHandler, s func(place) []site) {
		n := len(z)
		z.add(scenario{name: "at " + ip + " " + name, at: ip, want: []kubelet.Verdict{want}, containers: one(n, patience, handler), sites: s, process: n%6 == 0})
	}
	http1 := func(p place) corev1.ProbeHandler { return get(p, "/probe?a=b") }
	to := func(location func(place) string) func(place) []site {
		return func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				if x.n == 1 {
					x.reply(302, "", "Location: "+location(p))
					return
				}
				x.reply(200, "")
			}}}
		}
	}
	for _, ip := range []string{"::1", "127.0.0.1"} {
		at("HTTP", ip, success, http1, plain)
		at("HTTP with a Host", ip, success, func(p place) corev1.ProbeHandler { return get(p, "/", header("host", "x")) }, plain)
		at("HTTPS", ip, success, func(p place) corev1.ProbeHandler { return getTLS(p, "/") }, func(p place) []site {
			return []site{{port: p.app, tls: serverTLS(), answer: ok}}
		})
		at("TCP open", ip, success, func(p place) corev1.ProbeHandler { return tcpSocket(port(p.app)) }, plain)
		at("TCP refused", ip, failure, func(p place) corev1.ProbeHandler { return tcpSocket(port(p.closed)) }, plain)
		at("gRPC", ip, success, func(p place) corev1.ProbeHandler { return grpcHealth(p, "a") }, func(p place) []site {
			return []site{{port: p.app, answer2: health(1)}}
		})
		at("redirect to itself", ip, success, http1, to(func(p place) string { return p.url("http", p.app, "/new") }))
		at("redirect to the virtual port", ip, failure, http1, to(func(p place) string { return p.url("http", p.virtual, "/new") }))
		at("redirect to localhost", ip, warning, http1, to(func(p place) string { return "http://localhost:" + strconv.Itoa(p.app) + "/" }))
	}
	at("redirect to ::1 in full", "::1", warning, http1, to(func(p place) string { return fmt.Sprintf("http://[0:0:0:0:0:0:0:1]:%d/", p.app) }))
	at("redirect to ::1 with a zone", "::1", warning, http1, to(func(p place) string { return fmt.Sprintf("http://[::1%%25lo]:%d/", p.app) }))
	return z
}
