package fidelity_test

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// hookRow is a call of postStart or preStop by HTTP.
type hookRow struct {
	name    string
	want    kubelet.Verdict
	probe   probeHandler
	servers servers
}

// hooks are calls of postStart and preStop.
func hooks() []testCase {
	var all []testCase
	for _, r := range slices.Concat(hookAnswers(), hookRequests(), hooksByHTTPS()) {
		all = append(all, testCase{name: "hook " + r.name, want: verdicts{r.want}, probe: r.probe, hook: true, servers: r.servers})
	}
	return append(all, hookPods()...)
}

// hookAnswers are what the application does with a call. Its status does not matter.
func hookAnswers() []hookRow {
	call := get("/hook?a=b")
	text := func(s string) servers { return http1(says(s)) }
	slowBody := steps(send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"), pause(1.5), send("ok"))
	rows := []hookRow{
		{"to a port that is closed", failure, call, nothing},
		{"closed without an answer", failure, call, http1(closes)},
		{"reset without an answer", failure, call, http1(resets)},
		{"closed before the request", failure, call, raw(closes)},
		{"answered with garbage", failure, call, text("garbage\r\n\r\n")},
		{"with half the headers", failure, call, text("HTTP/1.1 200 OK\r\nX-A: b\r\n")},
		{"with the body cut", success, call, text("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")},
		{"with a wrong chunk", success, call, text("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")},
		{"with a body of 1 MiB", success, call, text("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat("x", 1<<20))},
		{"with gzip that lies", success, call, text("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok")},
		{"kept open", success, call, http1(ok)},
		{"that takes 2.5 s", success, call, http1(steps(pause(2.5), reply(200, "")))},
		{"whose body takes 1.5 s", success, call, http1(slowBody)},
		{"redirected", success, call, http1(inTurn(reply(302, "moved", "Location: /new"), reply(500, "")))},
		{"redirected elsewhere", success, call, text("HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")},
		{"redirected for ever", failure, call, http1(redirect("/hook"))},
		{"redirected to nowhere", failure, call, text("HTTP/1.1 302 Found\r\nLocation: :bad\r\nContent-Length: 0\r\n\r\n")},
		{"redirected to a closed port", failure, call, http1(redirect("http://IP:CLOSED/"))},
		{"redirected to the virtual port", failure, call, http1(redirect("http://IP:VIRTUAL/"))},
	}
	for _, status := range []string{"200 OK", "204 No", "304 Not Modified", "400 Bad", "404 No", "500 No", "503 No", "999 Odd"} {
		rows = append(rows, hookRow{status, success, call, text("HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n\r\n")})
	}
	return rows
}

// hookRequests are what the call is.
func hookRequests() []hookRow {
	with := func(pairs ...string) probeHandler { return get("/hook", list(pairs...)...) }
	rows := []hookRow{
		{"with headers", success, with("X-A", "1", "x-a", "2", "Host", "x.example", "Accept", "", "Foo", "bar"), nil},
		{"with User-Agent", success, with("User-Agent", "mine"), nil},
		{"with User-Agent empty", success, with("User-Agent", ""), nil},
		{"with Accept-Encoding", success, with("Accept-Encoding", "br"), nil},
		{"with Connection: close", success, with("Connection", "close"), nil},
		{"with Range", success, with("Range", "bytes=0-1"), nil},
		{"with a newline in a header", failure, with("X-A", "a\nb"), nil},
		{"path " + quoted("a:b"), failure, get("a:b"), nil},
	}
	for _, path := range []string{"", "foo", "foo?k=v", "foo#frag", "/a b", "/a?b c", "//x/y", "/$(INSTANCE_IP)", "/ä?ä", "/a%zz"} {
		rows = append(rows, hookRow{"path " + quoted(path), success, get(path), nil})
	}
	return rows
}

func hooksByHTTPS() []hookRow {
	call := getTLS("/hook", list("Authorization", "secret", "X-A", "1")...)
	// The application's port redirects to another port, which answers.
	two := func(first server, location string) servers {
		return func(p podAddress) []server {
			first.port, first.answer = p.app, redirect(location)
			return []server{first, {port: p.more[0], answer: ok}}
		}
	}
	return []hookRow{
		{"by HTTPS", success, call, https(ok)},
		{"by HTTPS to a port of HTTP", success, call, http1(ok)},
		{"by HTTPS to a port of HTTP that says 500", success, call, http1(reply(500, ""))},
		{"by HTTPS to a port of HTTP that closes then", failure, call, http1(closes)},
		{"by HTTPS to garbage", failure, call, raw(steps(send("garbage that is no TLS\r\n\r\n"), hangs))},
		{"by HTTPS, redirected to HTTP", success, call, two(server{tls: serverTLS()}, "http://IP:OTHER/new")},
		{"redirected to HTTPS that is HTTP", failure, get("/hook?a=b"), two(server{}, "https://IP:OTHER/new")},
	}
}

// hookPods have more than one hook, or hooks that the injector does not rewrite.
func hookPods() []testCase {
	const closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	same := get("/same")
	both := func(p podAddress) []corev1.Container {
		return []corev1.Container{
			{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, same), PreStop: newHook(p, same)}},
			{Name: "b", Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, same), PreStop: newHook(p, get("/same", header("X-A", "1")))}},
		}
	}
	startAndStop := func(p podAddress) []corev1.Container {
		return []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, get("/start")), PreStop: newHook(p, get("/stop"))}}}
	}
	withProbe := func(p podAddress) []corev1.Container {
		return []corev1.Container{{Name: "app", LivenessProbe: newProbe(p, same), Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, same)}}}
	}
	withHost := func(p podAddress) corev1.ProbeHandler {
		h := get("/x")(p)
		h.HTTPGet.Host = p.ip
		return h
	}
	withUnknownPort := func(p podAddress) corev1.ProbeHandler {
		h := get("/x")(p)
		h.HTTPGet.Port = intstr.FromString("nosuch")
		return h
	}
	failsToStop := byTarget(map[string]func(*exchange){"/stop": closes, "": says(closing)})
	return []testCase{
		{name: "hooks of a pod, answered on a connection that ends", want: verdicts{success}, containers: both, servers: http1(says(closing))},
		{
			name: "hooks of a pod, answered on a connection that is kept", want: verdicts{success}, containers: both,
			differs: "the kubelet calls all of them on one connection; the agent ends it after each hook",
		},
		{name: "hook that fails after one that did not", want: verdicts{success, failure}, containers: startAndStop, servers: http1(failsToStop)},
		{name: "hook with host", want: verdicts{success}, unchanged: true, probe: withHost, hook: true},
		{name: "hook with an unknown port name", want: verdicts{failure}, unchanged: true, probe: withUnknownPort, hook: true},
		{name: "hooks and probes of a pod", want: verdicts{success}, process: true, containers: withProbe, servers: http1(says(closing))},
	}
}
