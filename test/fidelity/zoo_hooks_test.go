package fidelity_test

import (
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// hooks are calls of postStart and preStop.
func hooks() (z zoo) {
	call := func(name string, want kubelet.Verdict, handler func(place) corev1.ProbeHandler, s func(place) []site) {
		n := len(z)
		z.add(scenario{
			name: "hook " + name, want: []kubelet.Verdict{want}, process: n%10 == 0,
			containers: func(p place) []corev1.Container {
				hook := &corev1.LifecycleHandler{HTTPGet: handler(p).HTTPGet}
				if n%2 == 0 {
					return []corev1.Container{{Name: "app", Lifecycle: &corev1.Lifecycle{PostStart: hook}}}
				}
				return []corev1.Container{{Name: "app", Lifecycle: &corev1.Lifecycle{PreStop: hook}}}
			},
			sites: s,
		})
	}
	http1 := func(p place) corev1.ProbeHandler { return get(p, "/hook?a=b") }
	https := func(p place) corev1.ProbeHandler {
		return getTLS(p, "/hook", header("Authorization", "secret"), header("X-A", "1"))
	}
	with := func(headers ...corev1.HTTPHeader) func(place) corev1.ProbeHandler {
		return func(p place) corev1.ProbeHandler { return get(p, "/hook", headers...) }
	}
	answer := func(f func(*exchange)) func(place) []site {
		return func(p place) []site { return []site{{port: p.app, answer: f}} }
	}
	text := func(s string) func(place) []site {
		return answer(func(x *exchange) {
			x.raw(s)
			x.close()
		})
	}
	connection := func(f func(*exchange)) func(place) []site {
		return func(p place) []site { return []site{{port: p.app, connection: f}} }
	}
	for _, status := range []string{"200 OK", "204 No", "304 Not Modified", "400 Bad", "404 No", "500 No", "503 No", "999 Odd"} {
		call(status, success, http1, text("HTTP/1.1 "+status+"\r\nContent-Length: 0\r\n\r\n"))
	}
	call("to a port that is closed", failure, http1, func(place) []site { return nil })
	call("closed without an answer", failure, http1, answer((*exchange).close))
	call("reset without an answer", failure, http1, answer((*exchange).reset))
	call("closed before the request", failure, http1, connection((*exchange).close))
	call("answered with garbage", failure, http1, text("garbage\r\n\r\n"))
	call("with half the headers", failure, http1, text("HTTP/1.1 200 OK\r\nX-A: b\r\n"))
	call("with the body cut", success, http1, text("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort"))
	call("with a wrong chunk", success, http1, text("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"))
	call("with a body of 1 MiB", success, http1, text("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat("x", 1<<20)))
	call("with gzip that lies", success, http1, text("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok"))
	call("kept open", success, http1, answer(ok))
	call("that takes 2.5 s", success, http1, answer(func(x *exchange) {
		if x.wait(seconds(2.5)) {
			x.reply(200, "")
		}
	}))
	call("whose body takes 1.5 s", success, http1, answer(func(x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n")
		if x.wait(seconds(1.5)) {
			x.raw("ok")
		}
	}))
	call("redirected", success, http1, answer(func(x *exchange) {
		if x.n == 1 {
			x.reply(302, "moved", "Location: /new")
			return
		}
		x.reply(500, "")
	}))
	call("redirected elsewhere", success, http1, text("HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n"))
	call("redirected for ever", failure, http1, answer(func(x *exchange) { x.reply(302, "", "Location: /hook") }))
	call("redirected to nowhere", failure, http1, text("HTTP/1.1 302 Found\r\nLocation: :bad\r\nContent-Length: 0\r\n\r\n"))
	call("redirected to a closed port", failure, http1, func(p place) []site {
		return answer(func(x *exchange) { x.reply(302, "", "Location: "+p.url("http", p.closed, "/")) })(p)
	})
	call("redirected to the virtual port", failure, http1, func(p place) []site {
		return answer(func(x *exchange) { x.reply(302, "", "Location: "+p.url("http", p.virtual, "/")) })(p)
	})
	call("with headers", success, with(header("X-A", "1"), header("x-a", "2"), header("Host", "x.example"), header("Accept", ""), header("Foo", "bar")), answer(ok))
	call("with User-Agent", success, with(header("User-Agent", "mine")), answer(ok))
	call("with User-Agent empty", success, with(header("User-Agent", "")), answer(ok))
	call("with Accept-Encoding", success, with(header("Accept-Encoding", "br")), answer(ok))
	call("with Connection: close", success, with(header("Connection", "close")), answer(ok))
	call("with Range", success, with(header("Range", "bytes=0-1")), answer(ok))
	call("with a newline in a header", failure, with(header("X-A", "a\nb")), answer(ok))
	for _, path := range []string{"", "foo", "foo?k=v", "foo#frag", "/a b", "/a?b c", "//x/y", "/$(INSTANCE_IP)", "/ä?ä", "/a%zz", "a:b"} {
		want := success
		if path == "a:b" {
			want = failure
		}
		call("path "+quoted(path), want, func(p place) corev1.ProbeHandler { return get(p, path) }, answer(ok))
	}
	call("by HTTPS", success, https, func(p place) []site { return []site{{port: p.app, tls: serverTLS(), answer: ok}} })
	call("by HTTPS to a port of HTTP", success, https, answer(ok))
	call("by HTTPS to a port of HTTP that says 500", success, https, answer(func(x *exchange) { x.reply(500, "") }))
	call("by HTTPS to a port of HTTP that closes then", failure, https, answer((*exchange).close))
	call("by HTTPS to garbage", failure, https, connection(func(x *exchange) {
		x.raw("garbage that is no TLS\r\n\r\n")
		x.hang()
	}))
	call("by HTTPS, redirected to HTTP", success, https, func(p place) []site {
		return []site{
			{port: p.app, tls: serverTLS(), answer: func(x *exchange) { x.reply(302, "", "Location: "+p.url("http", p.more[0], "/new")) }},
			{port: p.more[0], answer: ok},
		}
	})
	call("redirected to HTTPS that is HTTP", failure, http1, func(p place) []site {
		return []site{
			{port: p.app, answer: func(x *exchange) { x.reply(302, "", "Location: "+p.url("https", p.more[0], "/new")) }},
			{port: p.more[0], answer: ok},
		}
	})
	return append(z, hookPods()...)
}

// hookPods have more than one hook, or hooks that the injector leaves.
func hookPods() (z zoo) {
	hook := func(h corev1.ProbeHandler) *corev1.LifecycleHandler {
		return &corev1.LifecycleHandler{HTTPGet: h.HTTPGet}
	}
	both := func(p place) []corev1.Container {
		return []corev1.Container{
			{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: hook(get(p, "/same")), PreStop: hook(get(p, "/same"))}},
			{Name: "b", Lifecycle: &corev1.Lifecycle{PostStart: hook(get(p, "/same")), PreStop: hook(get(p, "/same", header("X-A", "1")))}},
		}
	}
	z.add(scenario{
		name: "hooks of a pod, answered on a connection that ends", want: []kubelet.Verdict{success}, containers: both,
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				x.raw("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				x.close()
			}}}
		},
	})
	z.add(scenario{
		name: "hooks of a pod, answered on a connection that is kept", want: []kubelet.Verdict{success}, containers: both, sites: plain,
		differs: "the kubelet calls all of them on one connection; the agent ends it after each hook",
	})
	z.add(scenario{
		name: "hook that fails after one that did not", want: []kubelet.Verdict{success, failure}, containers: func(p place) []corev1.Container {
			return []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: hook(get(p, "/start")), PreStop: hook(get(p, "/stop"))}}}
		},
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				if x.target == "/stop" {
					x.close()
					return
				}
				x.raw("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				x.close()
			}}}
		},
	})
	z.add(scenario{
		name: "hook with host", want: []kubelet.Verdict{success}, left: true, sites: plain,
		containers: func(p place) []corev1.Container {
			h := get(p, "/x")
			h.HTTPGet.Host = p.ip
			return []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: hook(h)}}}
		},
	})
	z.add(scenario{
		name: "hook with an unknown port name", want: []kubelet.Verdict{failure}, left: true, sites: plain,
		containers: func(p place) []corev1.Container {
			h := get(p, "/x")
			h.HTTPGet.Port = intstr.FromString("nosuch")
			return []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: hook(h)}}}
		},
	})
	z.add(scenario{
		name: "hooks and probes of a pod", want: []kubelet.Verdict{success}, process: true,
		containers: func(p place) []corev1.Container {
			c := container(0, patience, get(p, "/same"))
			c.Lifecycle = &corev1.Lifecycle{PostStart: hook(get(p, "/same"))}
			return []corev1.Container{c}
		},
		sites: func(p place) []site {
			return []site{{port: p.app, answer: func(x *exchange) {
				x.raw("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				x.close()
			}}}
		},
	})
	return z
}
