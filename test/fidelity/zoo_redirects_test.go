package fidelity_test

import (
	"crypto/tls"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// redirects is an application that sends the kubelet elsewhere.
func redirects() (z zoo) {
	to := func(name string, want kubelet.Verdict, location func(place) string, headers ...corev1.HTTPHeader) {
		n := len(z)
		z.add(scenario{
			name: "redirect " + name, want: []kubelet.Verdict{want}, process: n%15 == 0,
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return get(p, "/first/probe?a=b", headers...) }),
			sites: func(p place) []site {
				first := func(x *exchange) {
					switch {
					case x.n == 1:
						x.reply(302, "moved", "Location: "+location(p), "Set-Cookie: a=b; Path=/")
					case strings.HasPrefix(x.target, "/fail"):
						x.reply(500, "")
					default:
						x.reply(200, "")
					}
				}
				return []site{
					{port: p.app, answer: first},
					{port: p.more[0], answer: first},
					{port: p.more[1], tls: &tls.Config{Certificates: certificates().valid}, answer: first},
				}
			},
		})
	}
	text := func(s string) func(place) string { return func(place) string { return s } }
	for location, want := range sorted(map[string]kubelet.Verdict{
		"/new": success, "/fail": failure, "new": success, "./new": success, "../new": success, "../../../new": success,
		"?q=1": success, "#part": success, "/new#part": success, "/new?q=a b": success, "/a b": success, "/ä": success,
		"/a%2Fb": success, "/a//b": success, "/a/../b": success, "//": success, "///new": success, "/%zz": failure,
		":bad": failure, "http://[::1": failure, "http://a b/": failure, "http:///new": warning, "http:new": warning, "": warning,
		"http://elsewhere.example/": warning, "//elsewhere.example/new": warning, "https://elsewhere.example/": warning,
		"http://ELSEWHERE/": warning, "http://0.0.0.0/": warning, "http://127.0.0.1/": warning, "http://localhost/": warning,
		"http://[::1]/": warning, "ftp://elsewhere.example/": warning, "mailto:a@b": warning, "javascript:alert(1)": warning,
		"data:,x": warning, "*": success, "/new\tb": failure, "\\\\elsewhere\\new": success, "  /new  ": success,
	}) {
		to(fmt.Sprintf("to %q", location), want, text(location))
	}
	to("to its own address", success, func(p place) string { return p.url("http", p.app, "/new") })
	to("to its own address that fails", failure, func(p place) string { return p.url("http", p.app, "/fail") })
	to("to its own address, HTTP in capitals", success, func(p place) string { return p.url("HTTP", p.app, "/new") })
	to("without a scheme", success, func(p place) string { return strings.TrimPrefix(p.url("", p.app, "/new"), ":") })
	to("without a path", success, func(p place) string { return p.url("http", p.app, "") })
	to("to another port", success, func(p place) string { return p.url("http", p.more[0], "/new") })
	to("to another port that fails", failure, func(p place) string { return p.url("http", p.more[0], "/fail") })
	to("to a closed port", failure, func(p place) string { return p.url("http", p.closed, "/new") })
	to("to port 0", failure, func(p place) string { return p.url("http", 0, "/new") })
	to("to port 99999", failure, func(p place) string { return p.url("http", 99999, "/new") })
	to("to the default port", failure, func(p place) string { return "http://" + p.ip + "/new" })
	to("to https with a certificate of its own", success, func(p place) string { return p.url("https", p.more[1], "/new") })
	to("to https on a port without TLS", failure, func(p place) string { return p.url("https", p.more[0], "/new") })
	to("to http on a port with TLS", failure, func(p place) string { return p.url("http", p.more[1], "/new") })
	to("to the virtual port", failure, func(p place) string { return p.url("http", p.virtual, "/new") })
	to("to the probe on the virtual port", failure, func(p place) string {
		return p.url("http", p.virtual, "/"+strconv.Itoa(p.app)+"/first/probe?a=b")
	})
	to("to the virtual port by https", failure, func(p place) string { return p.url("https", p.virtual, "/new") })
	to("to its address with a dot", warning, func(p place) string { return fmt.Sprintf("http://%s.:%d/new", p.ip, p.app) })
	to("to its address in octal", warning, func(p place) string {
		return fmt.Sprintf("http://0177%s:%d/new", strings.TrimPrefix(p.ip, "127"), p.app)
	})
	to("to its address in IPv6", warning, func(p place) string { return fmt.Sprintf("http://[::ffff:%s]:%d/new", p.ip, p.app) })
	to("with a user", success, func(p place) string { return strings.Replace(p.url("http", p.app, "/new"), "//", "//user:pass@", 1) })
	to("by another scheme to its own address", failure, func(p place) string { return p.url("ftp", p.app, "/new") })
	for location, want := range sorted(map[string]kubelet.Verdict{
		"http://IP:PORT@elsewhere.example/": warning, "http://elsewhere.example@IP:PORT/new": success, "http://@IP:PORT/new": success,
		"http://IP:0PORT/new": success, "//IP:OTHER?q": success, "//IP:OTHER#f": success, "HTTPS://IP:TLS/new": success, "https://u:p@IP:TLS/new": success,
		"http://IP:/new": failure, "http://IP:-1/": failure, "http://IP:PORT.": failure, "http://IP:PORT\\@elsewhere.example/": failure,
		"http://[IP]:PORT/new": failure, "http://IP%3APORT/": failure, "http://%31IP:PORT/": failure, "http:///IP:PORT/new": warning,
		"http:IP:PORT/new": warning, "IP:PORT/new": failure, "/IP:PORT/new": success, "http://IP:PORT//new": success, "http://IP:PORT/../new": success,
		"ws://IP:PORT/": failure, "unix://IP:PORT/": failure, "http://IP:VIRTUAL@elsewhere.example/": warning, "http://u@IP:VIRTUAL/": failure,
		"http://IP:0VIRTUAL/": failure,
	}) {
		to("to "+location, want, func(p place) string {
			return strings.NewReplacer("IP", p.ip, "PORT", strconv.Itoa(p.app), "OTHER", strconv.Itoa(p.more[0]), "TLS", strconv.Itoa(p.more[1]),
				"VIRTUAL", strconv.Itoa(p.virtual)).Replace(location)
		}, header("Authorization", "Bearer x"))
	}
	secret := []corev1.HTTPHeader{header("Authorization", "Bearer x"), header("Cookie", "c=d"), header("X-A", "1"), header("X-A", "2"), header("Referer", "http://r/")}
	to("with the user's headers", success, text("/new"), secret...)
	to("with the user's headers to another port", success, func(p place) string { return p.url("http", p.more[0], "/new") }, secret...)
	to("with the user's headers to https", success, func(p place) string { return p.url("https", p.more[1], "/new") }, secret...)
	to("with a Host", success, text("/new"), header("Host", "x.example"))
	to("with a Host, to an address", success, func(p place) string { return p.url("http", p.app, "/new") }, header("Host", "x.example"))
	to("with a Host, to that host", warning, text("http://x.example/new"), header("Host", "x.example"))
	to("with a Host of another port", success, text("new"), header("Host", "x.example:81"))
	to("with User-Agent empty", success, text("/new"), header("User-Agent", ""), header("Accept", ""))
	z = append(z, redirectChains()...)
	return append(z, redirectAnswers()...)
}

// redirectChains follow one another.
func redirectChains() (z zoo) {
	for n, want := range sorted(map[int]kubelet.Verdict{1: success, 2: success, 8: success, 9: success, 10: failure, 11: failure, 12: failure}) {
		z.http(fmt.Sprint("redirect chain of ", n), want, func(_ place, x *exchange) {
			if x.n <= n {
				x.reply(302, "", fmt.Sprint("Location: /", x.n))
				return
			}
			x.reply(200, "")
		})
	}
	z.http("redirect to itself for ever", failure, func(_ place, x *exchange) { x.reply(302, "", "Location: /probe") })
	z.http("redirect there and back for ever", failure, func(_ place, x *exchange) { x.reply(307, "", fmt.Sprint("Location: /", x.n%2)) })
	for _, c := range []struct {
		schemes string
		want    kubelet.Verdict
	}{{"http https http", success}, {"https http", success}, {"https https", success}, {"https http https http", success}} {
		n := len(z)
		z.add(scenario{
			name: "redirect " + strings.ReplaceAll(c.schemes, " ", " to "), want: []kubelet.Verdict{c.want},
			containers: one(n, patience, func(p place) corev1.ProbeHandler {
				h := get(p, "/0", header("X-A", "1"), header("Authorization", "x"))
				if strings.HasPrefix(c.schemes, "https") {
					h.HTTPGet.Scheme, h.HTTPGet.Port = corev1.URISchemeHTTPS, port(p.more[0])
				}
				return h
			}),
			sites: func(p place) []site {
				schemes := strings.Fields(c.schemes)
				answer := func(x *exchange) {
					if x.n == len(schemes) {
						x.reply(200, "")
						return
					}
					next := p.url("http", p.app, "/n")
					if schemes[x.n] == "https" {
						next = p.url("https", p.more[0], "/n")
					}
					x.reply(302, "", "Location: "+next)
				}
				return []site{{port: p.app, answer: answer}, {port: p.more[0], answer: answer, tls: &tls.Config{Certificates: certificates().valid}}}
			},
		})
	}
	return z
}

// redirectAnswers are answers that redirect, with more in them than that.
func redirectAnswers() (z zoo) {
	for _, code := range []int{300, 301, 302, 303, 304, 305, 306, 307, 308, 399} {
		for target, wants := range sorted(map[string][2]kubelet.Verdict{ // followed, not followed
			"/new": {success, warning}, "/fail": {failure, warning}, "http://elsewhere.example/": {warning, warning},
		}) {
			want := wants[1]
			if code == 301 || code == 302 || code == 303 || code == 307 || code == 308 {
				want = wants[0]
			}
			z.http(fmt.Sprintf("redirect %d to %s", code, target), want, func(_ place, x *exchange) {
				switch {
				case x.n == 1 && code == 304:
					x.raw("HTTP/1.1 304 Not Modified\r\nLocation: " + target + "\r\n\r\n")
					x.close()
				case x.n == 1:
					x.reply(code, "", "Location: "+target)
				case x.target == "/fail":
					x.reply(500, "")
				default:
					x.reply(200, "")
				}
			})
		}
	}
	first := func(name string, want kubelet.Verdict, answer string) {
		z.http("redirect "+name, want, func(_ place, x *exchange) {
			if x.n == 1 {
				x.raw(answer)
				x.close()
				return
			}
			x.reply(200, "")
		})
	}
	const moved = "HTTP/1.1 302 Found\r\nLocation: "
	first("with a body of 1 MiB", success, moved+"/new\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat("x", 1<<20))
	first("with a body that is cut", success, moved+"/new\r\nContent-Length: 100\r\n\r\nshort")
	first("with a wrong chunk", success, moved+"/new\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
	first("with two Locations", success, moved+"/new\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")
	first("without Location", warning, "HTTP/1.1 302 Found\r\nContent-Length: 2\r\n\r\nok")
	first("without Location, body cut, then 200", success, "HTTP/1.1 302 Found\r\nContent-Length: 20\r\n\r\nok")
	first("elsewhere with a body", warning, moved+"http://elsewhere.example/\r\nContent-Length: 2\r\n\r\nok")
	first("elsewhere with a body of 1 MiB", warning, moved+"http://elsewhere.example/\r\nContent-Length: 1048576\r\n\r\n"+strings.Repeat("x", 1<<20))
	first("of HTTP/1.0", success, "HTTP/1.0 302 Found\r\nLocation: /new\r\n\r\n")
	first("with Refresh alone", success, "HTTP/1.1 200 OK\r\nRefresh: 0; url=http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")
	z.http("redirect elsewhere, body always cut", errored, func(_ place, x *exchange) {
		x.raw(moved + "http://elsewhere.example/\r\nContent-Length: 100\r\n\r\nshort")
		x.close()
	})
	z.httpIn("redirect whose body never ends", 1, failure, func(_ place, x *exchange) {
		x.raw(moved + "/new\r\nContent-Length: 100\r\n\r\nshort")
		x.hang()
	})
	return z
}
