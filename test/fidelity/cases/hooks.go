package cases

import (
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// hookRow is an HTTP call of postStart or preStop.
type hookRow struct {
	name    string
	want    Verdict
	probe   probeHandler
	servers servers
}

// hooks are calls of postStart and preStop.
func hooks() []Case {
	var all []Case
	for _, r := range slices.Concat(hookAnswers(), hookRequests(), hooksByHTTPS()) {
		all = append(all, Case{Name: "hook " + r.name, Want: Verdicts{r.want}, probe: r.probe, hook: true, servers: r.servers})
	}
	return append(all, hookPods()...)
}

// hookAnswers are what the application does with a call. The status is ignored.
func hookAnswers() []hookRow {
	call := get("/hook?a=b")
	text := func(s string) servers { return http1(says(s)) }
	slowBody := steps(send("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"), pause(1.5), send("ok"))
	rows := []hookRow{
		{"to a port that is closed", Failure, call, nothing},
		{"closed without an answer", Failure, call, http1(closes)},
		{"reset without an answer", Failure, call, http1(resets)},
		{"closed before the request", Failure, call, raw(closes)},
		{"answered with garbage", Failure, call, text("garbage\r\n\r\n")},
		{"with half the headers", Failure, call, text("HTTP/1.1 200 OK\r\nX-A: b\r\n")},
		{"with the body cut", Success, call, text("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nshort")},
		{"with a wrong chunk", Success, call, text("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")},
		{"with a body of 1 MiB", Success, call, text("HTTP/1.1 200 OK\r\nContent-Length: 1048576\r\n\r\n" + strings.Repeat("x", 1<<20))},
		{"with gzip that lies", Success, call, text("HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 2\r\n\r\nok")},
		{"kept open", Success, call, http1(ok)},
		{"that takes 2.5 s", Success, call, http1(steps(pause(2.5), reply(200, "")))},
		{"whose body takes 1.5 s", Success, call, http1(slowBody)},
		{"redirected", Success, call, http1(inTurn(reply(302, "moved", "Location: /new"), reply(500, "")))},
		{"redirected elsewhere", Success, call, text("HTTP/1.1 302 Found\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")},
		{"redirected for ever", Failure, call, http1(redirect("/hook"))},
		{"redirected to nowhere", Failure, call, text("HTTP/1.1 302 Found\r\nLocation: :bad\r\nContent-Length: 0\r\n\r\n")},
		{"redirected to a closed port", Failure, call, http1(redirect("http://IP:CLOSED/"))},
		{"redirected to the virtual port", Failure, call, http1(redirect("http://IP:VIRTUAL/"))},
	}
	for _, status := range []string{
		"200 OK", "204 No", "304 Not Modified", "400 Bad", "404 No", "500 No", "503 No", "999 Odd",
	} {
		rows = append(rows, hookRow{status, Success, call, text("HTTP/1.1 " + status + "\r\nContent-Length: 0\r\n\r\n")})
	}
	return rows
}

// hookRequests are different calls.
func hookRequests() []hookRow {
	with := func(pairs ...string) probeHandler { return get("/hook", list(pairs...)...) }
	rows := []hookRow{
		{"with headers", Success, with("X-A", "1", "x-a", "2", "Host", "x.example", "Accept", "", "Foo", "bar"), nil},
		{"with User-Agent", Success, with("User-Agent", "mine"), nil},
		{"with User-Agent empty", Success, with("User-Agent", ""), nil},
		{"with Accept-Encoding", Success, with("Accept-Encoding", "br"), nil},
		{"with Connection: close", Success, with("Connection", "close"), nil},
		{"with Range", Success, with("Range", "bytes=0-1"), nil},
		{"with a newline in a header", Failure, with("X-A", "a\nb"), nil},
		{"path " + quoted("a:b"), Failure, get("a:b"), nil},
	}
	for _, path := range []string{
		"", "foo", "foo?k=v", "foo#frag", "/a b", "/a?b c", "//x/y", "/$(INSTANCE_IP)", "/ä?ä", "/a%zz",
	} {
		rows = append(rows, hookRow{"path " + quoted(path), Success, get(path), nil})
	}
	return rows
}

func hooksByHTTPS() []hookRow {
	call := getTLS("/hook", list("Authorization", "secret", "X-A", "1")...)
	// The application's port redirects to another port, which answers.
	two := func(first server, location string) servers {
		return func(p PodAddress) []server {
			first.port, first.answer = p.App, redirect(location)
			return []server{first, {port: p.More[0], answer: ok}}
		}
	}
	return []hookRow{
		{"by HTTPS", Success, call, https(ok)},
		{"by HTTPS to a port of HTTP", Success, call, http1(ok)},
		{"by HTTPS to a port of HTTP that says 500", Success, call, http1(reply(500, ""))},
		{"by HTTPS to a port of HTTP that closes then", Failure, call, http1(closes)},
		{"by HTTPS to garbage", Failure, call, raw(steps(send("garbage that is no TLS\r\n\r\n"), hangs))},
		{"by HTTPS, redirected to HTTP", Success, call, two(server{tls: serverTLS()}, "http://IP:OTHER/new")},
		{"redirected to HTTPS that is HTTP", Failure, get("/hook?a=b"), two(server{}, "https://IP:OTHER/new")},
	}
}

// hookPods have several hooks, or hooks that the injector does not rewrite.
func hookPods() []Case {
	const closing = "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
	same := get("/same")
	both := func(p PodAddress) []corev1.Container {
		return []corev1.Container{
			{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, same), PreStop: newHook(p, same)}},
			{Name: "b", Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, same), PreStop: newHook(p, get("/same", header("X-A", "1")))}},
		}
	}
	startAndStop := func(p PodAddress) []corev1.Container {
		return []corev1.Container{{Name: "a", Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, get("/start")), PreStop: newHook(p, get("/stop"))}}}
	}
	withProbe := func(p PodAddress) []corev1.Container {
		return []corev1.Container{{Name: "app", LivenessProbe: newProbe(p, same), Lifecycle: &corev1.Lifecycle{PostStart: newHook(p, same)}}}
	}
	withHost := func(p PodAddress) corev1.ProbeHandler {
		h := get("/x")(p)
		h.HTTPGet.Host = p.IP
		return h
	}
	withUnknownPort := func(p PodAddress) corev1.ProbeHandler {
		h := get("/x")(p)
		h.HTTPGet.Port = intstr.FromString("nosuch")
		return h
	}
	failsToStop := byTarget(map[string]func(*exchange){"/stop": closes, "": says(closing)})
	return []Case{
		{Name: "hooks of a pod, answered on a connection that ends", Want: Verdicts{Success}, Containers: both, servers: http1(says(closing))},
		{
			Name: "hooks of a pod, answered on a connection that is kept", Want: Verdicts{Success}, Containers: both,
			Differs: "the kubelet calls all hooks on one connection, the agent opens one for each hook",
		},
		{Name: "hook that fails after one that did not", Want: Verdicts{Success, Failure}, Containers: startAndStop, servers: http1(failsToStop)},
		{Name: "hook with host", Want: Verdicts{Success}, Unchanged: true, probe: withHost, hook: true},
		{Name: "hook with an unknown port name", Want: Verdicts{Failure}, Unchanged: true, probe: withUnknownPort, hook: true},
		{Name: "hooks and probes of a pod", Want: Verdicts{Success}, Process: true, Containers: withProbe, servers: http1(says(closing))},
	}
}
