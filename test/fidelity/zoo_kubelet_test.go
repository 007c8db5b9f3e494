package fidelity_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// kubeletTests are the cases of the kubelet's own tests (pkg/probe/{http,tcp,grpc}, pkg/kubelet/lifecycle), written anew where
// no other group has them. Here the application judges what it sees.
func kubeletTests() (z zoo) {
	judged := func(name string, accept func(*exchange) bool, list ...corev1.HTTPHeader) {
		n := len(z)
		z.add(scenario{
			name: "application finds " + name, want: []kubelet.Verdict{success},
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return get(p, "", list...) }),
			sites: func(p place) []site {
				return []site{{port: p.app, answer: func(x *exchange) {
					if accept(x) {
						x.reply(200, "ok body")
						return
					}
					x.reply(500, "fail body")
				}}}
			},
		})
	}
	has := func(line string) func(*exchange) bool {
		return func(x *exchange) bool { return strings.Contains(x.head, "\r\n"+line+"\r\n") }
	}
	not := func(name string) func(*exchange) bool {
		return func(x *exchange) bool { return !strings.Contains(x.head, "\r\n"+name+":") }
	}
	judged("three headers and Host", func(x *exchange) bool {
		names := map[string]bool{}
		for _, line := range strings.Split(x.head, "\r\n")[1:] {
			if name, _, ok := strings.Cut(line, ": "); ok {
				names[name] = true
			}
		}
		return slices.Equal(slices.Sorted(maps.Keys(names)), []string{"Accept", "Connection", "Host", "User-Agent"})
	})
	judged("the kubelet's user agent", has("User-Agent: kube-probe/"+kubelet.Version))
	judged("Accept: */*", has("Accept: */*"))
	judged("no Accept-Encoding", not("Accept-Encoding"))
	judged("no Sonde-Probe", not("Sonde-Probe"))
	judged("Accept-Encoding: gzip", has("Accept-Encoding: gzip"), header("Accept-Encoding", "gzip"))
	judged("Accept-Encoding: foo", has("Accept-Encoding: foo"), header("Accept-Encoding", "foo"))
	judged("Accept-Encoding empty", has("Accept-Encoding: "), header("Accept-Encoding", ""))
	judged("X-Muffins-Or-Cupcakes", has("X-Muffins-Or-Cupcakes: muffins"), header("X-Muffins-Or-Cupcakes", "muffins"), header("Accept", "foo/*"))
	judged("User-Agent: foo/1.0", has("User-Agent: foo/1.0"), header("User-Agent", "foo/1.0"), header("Accept", "text/html"))
	judged("no User-Agent", not("User-Agent"), header("User-Agent", ""))
	judged("no Accept", not("Accept"), header("User-Agent", "foo/1.0"), header("Accept", ""))
	judged("its Host", has("Host: muffins.cupcakes.org"), header("Host", "muffins.cupcakes.org"))
	judged("HTTP/1.1", func(x *exchange) bool { return strings.HasPrefix(x.head, "GET / HTTP/1.1\r\n") })
	for _, code := range []int{301, 302, 307, 308} {
		for body, want := range sorted(map[string]kubelet.Verdict{"": warning, "ok body": warning}) {
			z.http(fmt.Sprintf("redirect %d to one without Location, body %q", code, body), want, func(_ place, x *exchange) {
				if x.n == 1 {
					x.reply(code, "", "Location: /new")
					return
				}
				x.reply(code, body)
			})
		}
	}
	for host, want := range sorted(map[string]kubelet.Verdict{"www.success.com": success, "www.fail.com": failure}) {
		z.add(scenario{
			name: "redirect keeps Host " + host, want: []kubelet.Verdict{want},
			containers: one(0, patience, func(p place) corev1.ProbeHandler { return get(p, "/redirect", header("Host", host)) }),
			sites: func(p place) []site {
				return []site{{port: p.app, answer: func(x *exchange) {
					switch {
					case x.target == "/redirect":
						x.reply(302, "", "Location: /success")
					case strings.Contains(x.head, "\r\nHost: www.success.com\r\n"):
						x.reply(200, "")
					default:
						x.reply(400, "")
					}
				}}}
			},
		})
	}
	return z
}
