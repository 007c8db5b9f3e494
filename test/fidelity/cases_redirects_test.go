package fidelity_test

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// redirectRow is a Location, with the words of podAddress.fill, and what the kubelet makes of it.
type redirectRow struct {
	location string
	want     kubelet.Verdict
}

// redirects is an application that sends the kubelet elsewhere.
func redirects() []testCase {
	secret := list("Authorization", "Bearer x", "Cookie", "c=d", "X-A", "1", "X-A", "2", "Referer", "http://r/")
	return slices.Concat(
		redirected("to", nil, relativeRedirects()),
		redirected("to", nil, absoluteRedirects()),
		redirected("with Authorization to", list("Authorization", "Bearer x"), oddAddressRedirects()),
		redirected("with the user's headers to", secret, []redirectRow{
			{"/new", success}, {"http://IP:OTHER/new", success}, {"https://IP:TLS/new", success},
		}),
		redirected("with a Host to", list("Host", "x.example"), []redirectRow{
			{"/new", success}, {"http://IP:PORT/new", success}, {"http://x.example/new", warning},
		}),
		redirected("with a Host of another port to", list("Host", "x.example:81"), []redirectRow{{"new", success}}),
		redirected("with User-Agent empty to", list("User-Agent", "", "Accept", ""), []redirectRow{{"/new", success}}),
		redirectChains(), redirectStatuses(), redirectAnswers(),
	)
}

// redirected makes cases of rows. Every server of the application answers: the first one with the redirect.
func redirected(name string, headers []corev1.HTTPHeader, rows []redirectRow) []testCase {
	var all []testCase
	for _, r := range rows {
		answer := func(x *exchange) {
			switch {
			case x.n == 1:
				x.reply(302, "moved", "Location: "+x.addr.fill(r.location), "Set-Cookie: a=b; Path=/")
			case strings.HasPrefix(x.target, "/fail"):
				x.reply(500, "")
			default:
				x.reply(200, "")
			}
		}
		all = append(all, testCase{
			name: fmt.Sprintf("redirect %s %q", name, r.location), want: verdicts{r.want}, probe: get("/first/probe?a=b", headers...),
			servers: func(p podAddress) []server {
				return []server{{port: p.app, answer: answer}, {port: p.more[0], answer: answer}, {port: p.more[1], tls: serverTLS(), answer: answer}}
			},
		})
	}
	return all
}

func relativeRedirects() []redirectRow {
	return []redirectRow{
		{"/new", success}, {"/fail", failure}, {"new", success}, {"./new", success}, {"../new", success},
		{"../../../new", success}, {"?q=1", success}, {"#part", success}, {"/new#part", success}, {"/new?q=a b", success},
		{"/a b", success}, {"/ä", success}, {"/a%2Fb", success}, {"/a//b", success}, {"/a/../b", success}, {"//", success},
		{"///new", success}, {"/%zz", failure}, {":bad", failure}, {"*", success}, {"/new\tb", failure},
		{`\\elsewhere\new`, success}, {"  /new  ", success}, {"", warning},
	}
}

func absoluteRedirects() []redirectRow {
	return []redirectRow{
		{"http://[::1", failure}, {"http://a b/", failure}, {"http:///new", warning}, {"http:new", warning},
		{"http://elsewhere.example/", warning}, {"//elsewhere.example/new", warning}, {"https://elsewhere.example/", warning},
		{"http://ELSEWHERE/", warning}, {"http://0.0.0.0/", warning}, {"http://127.0.0.1/", warning}, {"http://localhost/", warning},
		{"http://[::1]/", warning}, {"ftp://elsewhere.example/", warning}, {"mailto:a@b", warning},
		{"javascript:alert(1)", warning}, {"data:,x", warning},
		{"http://IP:PORT/new", success},
		{"http://IP:PORT/fail", failure},
		{"HTTP://IP:PORT/new", success},
		{"//IP:PORT/new", success},
		{"http://IP:PORT", success},
		{"http://IP:OTHER/new", success},
		{"http://IP:OTHER/fail", failure},
		{"http://IP:CLOSED/new", failure},
		{"http://IP:0/new", failure},
		{"http://IP:99999/new", failure},
		{"http://IP/new", failure},
		{"https://IP:TLS/new", success},
		{"https://IP:OTHER/new", failure},
		{"http://IP:TLS/new", failure},
		{"http://IP:VIRTUAL/new", failure},
		{"http://IP:VIRTUAL/PORT/first/probe?a=b", failure},
		{"https://IP:VIRTUAL/new", failure},
		{"http://IP.:PORT/new", warning},
		{"http://0177OCTAL:PORT/new", warning},
		{"http://[::ffff:IP]:PORT/new", warning},
		{"http://user:pass@IP:PORT/new", success},
		{"ftp://IP:PORT/new", failure},
	}
}

func oddAddressRedirects() []redirectRow {
	return []redirectRow{
		{"http://IP:PORT@elsewhere.example/", warning}, {"http://elsewhere.example@IP:PORT/new", success}, {"http://@IP:PORT/new", success},
		{"http://IP:0PORT/new", success}, {"//IP:OTHER?q", success}, {"//IP:OTHER#f", success}, {"HTTPS://IP:TLS/new", success},
		{"https://u:p@IP:TLS/new", success}, {"http://IP:/new", failure}, {"http://IP:-1/", failure}, {"http://IP:PORT.", failure},
		{`http://IP:PORT\@elsewhere.example/`, failure}, {"http://[IP]:PORT/new", failure}, {"http://IP%3APORT/", failure},
		{"http://%31IP:PORT/", failure}, {"http:///IP:PORT/new", warning}, {"http:IP:PORT/new", warning}, {"IP:PORT/new", failure},
		{"/IP:PORT/new", success}, {"http://IP:PORT//new", success}, {"http://IP:PORT/../new", success}, {"ws://IP:PORT/", failure},
		{"unix://IP:PORT/", failure}, {"http://IP:VIRTUAL@elsewhere.example/", warning}, {"http://u@IP:VIRTUAL/", failure},
		{"http://IP:0VIRTUAL/", failure},
	}
}

// redirectChains follow one another.
func redirectChains() []testCase {
	chain := func(n int) func(*exchange) {
		return func(x *exchange) {
			if x.n <= n {
				x.reply(302, "", fmt.Sprint("Location: /", x.n))
				return
			}
			x.reply(200, "")
		}
	}
	all := answers("redirect ", []row{
		{"chain of 1", success, chain(1)}, {"chain of 2", success, chain(2)}, {"chain of 8", success, chain(8)}, {"chain of 9", success, chain(9)},
		{"chain of 10", failure, chain(10)}, {"chain of 11", failure, chain(11)}, {"chain of 12", failure, chain(12)},
		{"to itself for ever", failure, redirect("/probe")},
		{"there and back for ever", failure, func(x *exchange) { x.reply(307, "", fmt.Sprint("Location: /", x.n%2)) }},
	})
	for _, schemes := range []string{"http https http", "https http", "https https", "https http https http"} {
		var locations []func(*exchange)
		for _, scheme := range strings.Fields(schemes)[1:] {
			locations = append(locations, redirect(map[string]string{"http": "http://IP:PORT/n", "https": "https://IP:TLS/n"}[scheme]))
		}
		answer := inTurn(append(locations, reply(200, ""))...)
		all = append(all, testCase{
			name: "redirect " + strings.ReplaceAll(schemes, " ", " to "), want: verdicts{success},
			probe: func(p podAddress) corev1.ProbeHandler {
				h := get("/0", list("X-A", "1", "Authorization", "x")...)(p)
				if strings.HasPrefix(schemes, "https") {
					h.HTTPGet.Scheme, h.HTTPGet.Port = corev1.URISchemeHTTPS, port(p.more[1])
				}
				return h
			},
			servers: func(p podAddress) []server {
				return []server{{port: p.app, answer: answer}, {port: p.more[1], answer: answer, tls: serverTLS()}}
			},
		})
	}
	return all
}

// redirectStatuses are all that the kubelet might follow.
func redirectStatuses() []testCase {
	var rows []row
	for _, code := range []int{300, 301, 302, 303, 304, 305, 306, 307, 308, 399} {
		followed := slices.Contains([]int{301, 302, 303, 307, 308}, code)
		for target, want := range map[string]kubelet.Verdict{"/new": success, "/fail": failure, "http://elsewhere.example/": warning} {
			if !followed {
				want = warning
			}
			first := reply(code, "", "Location: "+target)
			if code == 304 {
				first = says("HTTP/1.1 304 Not Modified\r\nLocation: " + target + "\r\n\r\n")
			}
			then := byTarget(map[string]func(*exchange){"/fail": reply(500, ""), "": reply(200, "")})
			rows = append(rows, row{fmt.Sprintf("%d to %s", code, target), want, inTurn(first, then)})
		}
	}
	slices.SortFunc(rows, byName)
	return answers("redirect ", rows)
}

// redirectAnswers are answers that redirect, with more in them than that.
func redirectAnswers() []testCase {
	const moved = "HTTP/1.1 302 Found\r\nLocation: "
	const elsewhere = moved + "http://elsewhere.example/\r\n"
	first := func(text string) func(*exchange) { return inTurn(says(text), reply(200, "")) }
	big := "Content-Length: 1048576\r\n\r\n" + strings.Repeat("x", 1<<20)
	return answers("redirect ", []row{
		{"with a body of 1 MiB", success, first(moved + "/new\r\n" + big)},
		{"with a body that is cut", success, first(moved + "/new\r\nContent-Length: 100\r\n\r\nshort")},
		{"with a wrong chunk", success, first(moved + "/new\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")},
		{"with two Locations", success, first(moved + "/new\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")},
		{"without Location", warning, first("HTTP/1.1 302 Found\r\nContent-Length: 2\r\n\r\nok")},
		{"without Location, body cut, then 200", success, first("HTTP/1.1 302 Found\r\nContent-Length: 20\r\n\r\nok")},
		{"elsewhere with a body", warning, first(elsewhere + "Content-Length: 2\r\n\r\nok")},
		{"elsewhere with a body of 1 MiB", warning, first(elsewhere + big)},
		{"elsewhere, body always cut", errored, says(elsewhere + "Content-Length: 100\r\n\r\nshort")},
		{"of HTTP/1.0", success, first("HTTP/1.0 302 Found\r\nLocation: /new\r\n\r\n")},
		{"with Refresh alone", success, first("HTTP/1.1 200 OK\r\nRefresh: 0; url=http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")},
	})
}
