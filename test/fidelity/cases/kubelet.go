package cases

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// kubeletTests are the cases of the kubelet's own tests (pkg/probe/{http,tcp,grpc}, pkg/kubelet/lifecycle) that no
// other group has. Here the application checks what it sees.
func kubeletTests() []Case {
	var all []Case
	for _, r := range applicationChecks() {
		answer := func(x *exchange) {
			if r.accepts(x.head) {
				x.reply(200, "ok body")
				return
			}
			x.reply(500, "fail body")
		}
		all = append(all, Case{
			Name: "application finds " + r.name, Want: Verdicts{Success}, probe: get("", r.headers...), servers: http1(answer),
		})
	}
	for _, code := range []int{301, 302, 307, 308} {
		for _, body := range []string{"", "ok body"} {
			all = append(all, Case{
				Name: fmt.Sprintf("redirect %d to one without Location, body %q", code, body), Want: Verdicts{Warning},
				servers: http1(inTurn(reply(code, "", "Location: /new"), reply(code, body))),
			})
		}
	}
	byHost := func(x *exchange) {
		if strings.Contains(x.head, "\r\nHost: www.success.com\r\n") {
			x.reply(200, "")
			return
		}
		x.reply(400, "")
	}
	redirected := http1(byTarget(map[string]func(*exchange){"/redirect": redirect("/success"), "": byHost}))
	agnhost := reply(302, "<a href=\"http://0.0.0.0/\">Found</a>.\n\n", "Location: http://0.0.0.0/",
		"Content-Type: text/html; charset=utf-8")
	return append(all,
		Case{
			Name: "redirect of agnhost, which conformance tests ask", Want: Verdicts{Warning},
			probe: get("/redirect?loc=http%3A%2F%2F0.0.0.0%2F"), servers: http1(agnhost),
		},
		Case{
			Name: "redirect keeps Host www.success.com", Want: Verdicts{Success},
			probe: get("/redirect", header("Host", "www.success.com")), servers: redirected,
		},
		Case{
			Name: "redirect keeps Host www.fail.com", Want: Verdicts{Failure},
			probe: get("/redirect", header("Host", "www.fail.com")), servers: redirected,
		},
	)
}

// applicationCheck is what the application checks in the head of a request.
type applicationCheck struct {
	name    string
	accepts func(head string) bool
	headers []corev1.HTTPHeader
}

func applicationChecks() []applicationCheck {
	has := func(line string) func(string) bool {
		return func(head string) bool { return strings.Contains(head, "\r\n"+line+"\r\n") }
	}
	lacks := func(name string) func(string) bool {
		return func(head string) bool { return !strings.Contains(head, "\r\n"+name+":") }
	}
	three := func(head string) bool {
		names := map[string]bool{}
		for _, line := range strings.Split(head, "\r\n")[1:] {
			if name, _, ok := strings.Cut(line, ": "); ok {
				names[name] = true
			}
		}
		return slices.Equal(slices.Sorted(maps.Keys(names)), []string{"Accept", "Connection", "Host", "User-Agent"})
	}
	return []applicationCheck{
		{"three headers and Host", three, nil},
		{"the kubelet's user agent", regexp.MustCompile(`\r\nUser-Agent: kube-probe/1\.\d+\r\n`).MatchString, nil},
		{"Accept: */*", has("Accept: */*"), nil},
		{"no Accept-Encoding", lacks("Accept-Encoding"), nil},
		{"no Sonde-Probe", lacks("Sonde-Probe"), nil},
		{"Accept-Encoding: gzip", has("Accept-Encoding: gzip"), list("Accept-Encoding", "gzip")},
		{"Accept-Encoding: foo", has("Accept-Encoding: foo"), list("Accept-Encoding", "foo")},
		{"Accept-Encoding empty", has("Accept-Encoding: "), list("Accept-Encoding", "")},
		{
			"X-Muffins-Or-Cupcakes", has("X-Muffins-Or-Cupcakes: muffins"),
			list("X-Muffins-Or-Cupcakes", "muffins", "Accept", "foo/*"),
		},
		{"User-Agent: foo/1.0", has("User-Agent: foo/1.0"), list("User-Agent", "foo/1.0", "Accept", "text/html")},
		{"no User-Agent", lacks("User-Agent"), list("User-Agent", "")},
		{"no Accept", lacks("Accept"), list("User-Agent", "foo/1.0", "Accept", "")},
		{"its Host", has("Host: muffins.cupcakes.org"), list("Host", "muffins.cupcakes.org")},
		{"HTTP/1.1", func(head string) bool { return strings.HasPrefix(head, "GET / HTTP/1.1\r\n") }, nil},
	}
}
