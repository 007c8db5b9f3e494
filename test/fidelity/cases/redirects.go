package cases

import (
	"fmt"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// redirectRow is a Location with the placeholders of podAddress.fill, and the kubelet's verdict.
type redirectRow struct {
	location string
	want     Verdict
}

// redirects has an application that redirects the kubelet.
func redirects() []Case {
	secret := list("Authorization", "Bearer x", "Cookie", "c=d", "X-A", "1", "X-A", "2", "Referer", "http://r/")
	return slices.Concat(
		redirected("to", nil, relativeRedirects()),
		redirected("to", nil, absoluteRedirects()),
		redirected("with Authorization to", list("Authorization", "Bearer x"), oddAddressRedirects()),
		redirected("with the user's headers to", secret, []redirectRow{
			{"/new", Success}, {"http://IP:OTHER/new", Success}, {"https://IP:TLS/new", Success},
		}),
		redirected("with a Host to", list("Host", "x.example"), []redirectRow{
			{"/new", Success}, {"http://IP:PORT/new", Success}, {"http://x.example/new", Warning},
		}),
		redirected("with a Host of another port to", list("Host", "x.example:81"), []redirectRow{{"new", Success}}),
		redirected("with User-Agent empty to", list("User-Agent", "", "Accept", ""), []redirectRow{{"/new", Success}}),
		redirectChains(), redirectStatuses(), redirectAnswers(),
	)
}

// redirected turns rows into cases. Every server of the application answers, the first one with the redirect.
func redirected(name string, headers []corev1.HTTPHeader, rows []redirectRow) []Case {
	var all []Case
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
		all = append(all, Case{
			Name: fmt.Sprintf("redirect %s %q", name, r.location), Want: Verdicts{r.want}, probe: get("/first/probe?a=b", headers...),
			servers: func(p PodAddress) []server {
				return []server{
					{port: p.App, answer: answer}, {port: p.More[0], answer: answer},
					{port: p.More[1], tls: serverTLS(), answer: answer},
				}
			},
		})
	}
	return all
}

func relativeRedirects() []redirectRow {
	return []redirectRow{
		{"/new", Success}, {"/fail", Failure}, {"new", Success}, {"./new", Success}, {"../new", Success},
		{"../../../new", Success}, {"?q=1", Success}, {"#part", Success}, {"/new#part", Success}, {"/new?q=a b", Success},
		{"/a b", Success}, {"/ä", Success}, {"/a%2Fb", Success}, {"/a//b", Success}, {"/a/../b", Success}, {"//", Success},
		{"///new", Success}, {"/%zz", Failure}, {":bad", Failure}, {"*", Success}, {"/new\tb", Failure},
		{`\\elsewhere\new`, Success}, {"  /new  ", Success}, {"", Warning},
	}
}

func absoluteRedirects() []redirectRow {
	return []redirectRow{
		{"http://[::1", Failure}, {"http://a b/", Failure}, {"http:///new", Warning}, {"http:new", Warning},
		{"http://elsewhere.example/", Warning}, {"//elsewhere.example/new", Warning}, {"https://elsewhere.example/", Warning},
		{"http://ELSEWHERE/", Warning}, {"http://0.0.0.0/", Warning}, {"http://127.0.0.1/", Warning},
		{"http://localhost/", Warning}, {"http://[::1]/", Warning}, {"ftp://elsewhere.example/", Warning},
		{"mailto:a@b", Warning}, {"javascript:alert(1)", Warning}, {"data:,x", Warning},
		{"http://IP:PORT/new", Success},
		{"http://IP:PORT/fail", Failure},
		{"HTTP://IP:PORT/new", Success},
		{"//IP:PORT/new", Success},
		{"http://IP:PORT", Success},
		{"http://IP:OTHER/new", Success},
		{"http://IP:OTHER/fail", Failure},
		{"http://IP:CLOSED/new", Failure},
		{"http://IP:0/new", Failure},
		{"http://IP:99999/new", Failure},
		{"http://IP/new", Failure},
		{"https://IP:TLS/new", Success},
		{"https://IP:OTHER/new", Failure},
		{"http://IP:TLS/new", Failure},
		{"http://IP:VIRTUAL/new", Failure},
		{"http://IP:VIRTUAL/PORT/first/probe?a=b", Failure},
		{"https://IP:VIRTUAL/new", Failure},
		{"http://IP.:PORT/new", Warning},
		{"http://0177OCTAL:PORT/new", Warning},
		{"http://[::ffff:IP]:PORT/new", Warning},
		{"http://user:pass@IP:PORT/new", Success},
		{"ftp://IP:PORT/new", Failure},
	}
}

func oddAddressRedirects() []redirectRow {
	return []redirectRow{
		{"http://IP:PORT@elsewhere.example/", Warning}, {"http://elsewhere.example@IP:PORT/new", Success},
		{"http://@IP:PORT/new", Success}, {"http://IP:0PORT/new", Success}, {"//IP:OTHER?q", Success},
		{"//IP:OTHER#f", Success}, {"HTTPS://IP:TLS/new", Success}, {"https://u:p@IP:TLS/new", Success},
		{"http://IP:/new", Failure}, {"http://IP:-1/", Failure}, {"http://IP:PORT.", Failure},
		{`http://IP:PORT\@elsewhere.example/`, Failure}, {"http://[IP]:PORT/new", Failure}, {"http://IP%3APORT/", Failure},
		{"http://%31IP:PORT/", Failure}, {"http:///IP:PORT/new", Warning}, {"http:IP:PORT/new", Warning},
		{"IP:PORT/new", Failure}, {"/IP:PORT/new", Success}, {"http://IP:PORT//new", Success},
		{"http://IP:PORT/../new", Success}, {"ws://IP:PORT/", Failure}, {"unix://IP:PORT/", Failure},
		{"http://IP:VIRTUAL@elsewhere.example/", Warning}, {"http://u@IP:VIRTUAL/", Failure},
		{"http://IP:0VIRTUAL/", Failure},
	}
}

// redirectChains are several redirects in a row.
func redirectChains() []Case {
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
		{"chain of 1", Success, chain(1)}, {"chain of 2", Success, chain(2)}, {"chain of 8", Success, chain(8)},
		{"chain of 9", Success, chain(9)}, {"chain of 10", Failure, chain(10)}, {"chain of 11", Failure, chain(11)},
		{"chain of 12", Failure, chain(12)},
		{"to itself for ever", Failure, redirect("/probe")},
		{"there and back for ever", Failure, func(x *exchange) { x.reply(307, "", fmt.Sprint("Location: /", x.n%2)) }},
	})
	for _, schemes := range []string{"http https http", "https http", "https https", "https http https http"} {
		var locations []func(*exchange)
		for _, scheme := range strings.Fields(schemes)[1:] {
			to := map[string]string{"http": "http://IP:PORT/n", "https": "https://IP:TLS/n"}[scheme]
			locations = append(locations, redirect(to))
		}
		answer := inTurn(append(locations, reply(200, ""))...)
		all = append(all, Case{
			Name: "redirect " + strings.ReplaceAll(schemes, " ", " to "), Want: Verdicts{Success},
			probe: func(p PodAddress) corev1.ProbeHandler {
				h := get("/0", list("X-A", "1", "Authorization", "x")...)(p)
				if strings.HasPrefix(schemes, "https") {
					h.HTTPGet.Scheme, h.HTTPGet.Port = corev1.URISchemeHTTPS, port(p.More[1])
				}
				return h
			},
			servers: func(p PodAddress) []server {
				return []server{{port: p.App, answer: answer}, {port: p.More[1], answer: answer, tls: serverTLS()}}
			},
		})
	}
	return all
}

// redirectStatuses are all statuses that the kubelet might follow.
func redirectStatuses() []Case {
	var rows []row
	for _, code := range []int{300, 301, 302, 303, 304, 305, 306, 307, 308, 399} {
		followed := slices.Contains([]int{301, 302, 303, 307, 308}, code)
		for target, want := range map[string]Verdict{
			"/new": Success, "/fail": Failure, "http://elsewhere.example/": Warning,
		} {
			if !followed {
				want = Warning
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

// redirectAnswers are redirects with additional content.
func redirectAnswers() []Case {
	const moved = "HTTP/1.1 302 Found\r\nLocation: "
	const elsewhere = moved + "http://elsewhere.example/\r\n"
	first := func(text string) func(*exchange) { return inTurn(says(text), reply(200, "")) }
	big := "Content-Length: 1048576\r\n\r\n" + strings.Repeat("x", 1<<20)
	return answers("redirect ", []row{
		{"with a body of 1 MiB", Success, first(moved + "/new\r\n" + big)},
		{"with a body that is cut", Success, first(moved + "/new\r\nContent-Length: 100\r\n\r\nshort")},
		{"with a wrong chunk", Success, first(moved + "/new\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")},
		{"with two Locations", Success, first(moved + "/new\r\nLocation: http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")},
		{"without Location", Warning, first("HTTP/1.1 302 Found\r\nContent-Length: 2\r\n\r\nok")},
		{"without Location, body cut, then 200", Success, first("HTTP/1.1 302 Found\r\nContent-Length: 20\r\n\r\nok")},
		{"elsewhere with a body", Warning, first(elsewhere + "Content-Length: 2\r\n\r\nok")},
		{"elsewhere with a body of 1 MiB", Warning, first(elsewhere + big)},
		{"elsewhere, body always cut", Errored, says(elsewhere + "Content-Length: 100\r\n\r\nshort")},
		{"of HTTP/1.0", Success, first("HTTP/1.0 302 Found\r\nLocation: /new\r\n\r\n")},
		{"with Refresh alone", Success, first("HTTP/1.1 200 OK\r\nRefresh: 0; url=http://elsewhere.example/\r\nContent-Length: 0\r\n\r\n")},
	})
}
