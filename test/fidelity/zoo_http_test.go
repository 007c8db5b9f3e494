package fidelity_test

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// statuses is an answer of each class, and the ones around it.
func statuses() (z zoo) {
	for _, c := range []struct {
		code int
		want kubelet.Verdict
	}{
		{200, success}, {201, success}, {202, success}, {203, success}, {204, success}, {205, success}, {206, success},
		{226, success}, {299, success}, {300, warning}, {301, warning}, {302, warning}, {303, warning}, {304, warning},
		{305, warning}, {306, warning}, {307, warning}, {308, warning}, {399, warning}, {400, failure}, {401, failure},
		{403, failure}, {404, failure}, {407, failure}, {418, failure}, {421, failure}, {425, failure}, {429, failure},
		{499, failure}, {500, failure}, {501, failure}, {503, failure}, {505, failure}, {511, failure}, {599, failure},
		{600, failure}, {999, failure}, {199, failure}, {150, failure},
	} {
		z.http(fmt.Sprint("status ", c.code), c.want, func(_ place, x *exchange) {
			if c.code == 204 || c.code == 304 || c.code < 200 {
				x.raw(fmt.Sprintf("HTTP/1.1 %d Reason\r\n\r\n", c.code))
				x.close()
				return
			}
			x.reply(c.code, "a body")
		})
	}
	for name, c := range sorted(map[string]struct {
		line string
		want kubelet.Verdict
	}{
		"1000":               {"HTTP/1.1 1000 Many", failure},
		"099":                {"HTTP/1.1 099 Few", failure},
		"000":                {"HTTP/1.1 000 None", failure},
		"-200":               {"HTTP/1.1 -200 Minus", failure},
		"20":                 {"HTTP/1.1 20 Two digits", failure},
		"2x0":                {"HTTP/1.1 2x0 Letter", failure},
		"without a reason":   {"HTTP/1.1 200", success},
		"with an odd reason": {"HTTP/1.1 200 \x01\xff ok", success},
		"of HTTP/1.0":        {"HTTP/1.0 200 OK", success},
		"of HTTP/1.2":        {"HTTP/1.2 200 OK", success},
		"of HTTP/2.0":        {"HTTP/2.0 200 OK", success},
		"of HTTP/0.9":        {"HTTP/0.9 200 OK", success},
		"of http/1.1":        {"http/1.1 200 OK", failure},
		"of HTTP/1":          {"HTTP/1 200 OK", failure},
		"of ICY":             {"ICY 200 OK", failure},
	}) {
		z.http("status line "+name, c.want, func(_ place, x *exchange) {
			x.raw(c.line + "\r\nContent-Length: 0\r\n\r\n")
			x.close()
		})
	}
	return z
}

// interims is an answer of 1xx before, instead of or without another.
func interims() (z zoo) {
	const final = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	for name, c := range sorted(map[string]struct {
		text string
		want kubelet.Verdict
	}{
		"100 and 200":                    {"HTTP/1.1 100 Continue\r\n\r\n" + final, success},
		"102 and 200":                    {"HTTP/1.1 102 Processing\r\n\r\n" + final, success},
		"103 and 200":                    {"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n" + final, success},
		"five and 200":                   {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 5) + final, success},
		"six and 200":                    {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 6) + final, success},
		"100 times 103":                  {strings.Repeat("HTTP/1.1 103 Early Hints\r\n\r\n", 100) + final, success},
		"20,000 times 103 with a header": {strings.Repeat("HTTP/1.1 103 Early Hints\r\nLink: </aaaaaaaaaaaaaaaaaaaaaaaaaaaaa>\r\n\r\n", 20000) + final, success},
		"103 with a length and 200":      {"HTTP/1.1 103 Early Hints\r\nContent-Length: 5\r\n\r\n" + final, success},
		"103 that is wrong and 200":      {"HTTP/1.1 103 Early Hints\r\nX y\r\n\r\n" + final, failure},
		"103 alone":                      {"HTTP/1.1 103 Early Hints\r\n\r\n", failure},
		"101 with Upgrade and a body":    {"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n" + strings.Repeat("x", 11<<10), failure},
		"103 and 503":                    {"HTTP/1.1 103 Early Hints\r\n\r\nHTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n", failure},
		"100 alone":                      {"HTTP/1.1 100 Continue\r\n\r\n", failure},
		"101 without a word of upgrade":  {"HTTP/1.1 101 Switching Protocols\r\n\r\n", failure},
		"101 with Upgrade":               {"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n", failure},
	}) {
		z.http("interim "+name, c.want, func(_ place, x *exchange) {
			x.raw(c.text)
			x.close()
		})
	}
	return z
}

// path is a probe of each odd kind of path, whose request line the application must see as it would without a mesh.
func paths() (z zoo) {
	want := map[string]kubelet.Verdict{ // what the kubelet itself does not get to send
		"a:b": failure, "mailto:x": failure, "http:opaque": failure,
	}
	for _, path := range []string{
		// The table of kubernetes-facts §7, row by row.
		"a", "/a b", `/a"b`, `/a\b`, "/ä", "?x=1", "/a%2Fb", "/a%2fb", "/a%3Bb", "/a%23b", "/a%00b", "/a%2E%2E/b",
		"//healthz", "/a//b", "/a/../b", "/./a", "/..", "/a;b", "/a+b", "/a[1]", "/a'b", "//host/path",
		"http://other/abs?q", "/a|b^c`d{e}", "///x", "/a%zz", "/%", "*", "/a#frag", "/a?", "/a??x", "/a?x=1&y=%2F",
		"/a?q=a b", "/a?q=ä", "/a\nb", "/a?x\ny",
		// Dollars, which the kubelet expands in environment values.
		"/$", "/$$", "/$(INSTANCE_IP)", "/$(POD_NAME)", "/$$(INSTANCE_IP)", "/a?b=$(INSTANCE_IP)&c=$$", "/$(", "/$)", "/$(NOSUCH)",
		`/\u0024`, `/"}],`, `/\`,
		// And others.
		"/", "", "/healthz/", "/a/", "/%20", "/a%20b?c%20d", "/A%41", "/%7E~", "/a%", "/a%2", "/%g0", "/a?%zz", "/a?%", "/?", "??", "?",
		"#", "/#", "/?#", "/a?b#c", "/a?b?c#d?e", "#a", "/a\tb", "/a?b\tc", "/a\rb", "/a\x7fb", "/a?b\x7f", "/a\x01", "/a?\x01",
		"/a\u00a0b", "/日本", "/a?日本", "/a%E6%97%A5", "/\U0001f600", "/a?\U0001f600", "/a<b>", "/a?<b>", "/a?\"'`{}|\\^[]", "/a?b c d  e", "/a? ",
		" /a", "/a ", " ", "a b", "a?b", "a/b", "./a", "../a", ".", "..", "a//b", "//", "//a", "//a:1/b", "//a:b/c", "//[::1]/x", "//[::1/x", "//a b/c",
		"//user@host/x", "//user:secret@host/x", "http://user:secret@host/x", "https://other/x", "ftp://other/x", "HTTP://other/x",
		"http://", "http:///x", "http:/x", "http:opaque", "mailto:x", "a:b", "/a:b", ":b", ":", "1:2", "://x", "/:80/x", "/a@b", "/a&b=c", "/a=b,c!d(e)*f",
		"/a;b=c?d;e", "/%2e", "/%2E%2e/", "/a/./b/../c", "/9000/x", "/tcp/80", "/grpc/80/x", "/18080/a", "/%2F%2Fa", "/%252F", "/a%25", "/*", "**",
		"/a?b=http://c/d", "/a?%2e%2e/", "/" + strings.Repeat("x", 8000), "/a?" + strings.Repeat("y%20z ", 1000), strings.Repeat("/..", 100),
	} {
		n := len(z)
		verdict := success
		if w, ok := want[path]; ok {
			verdict = w
		}
		z.add(scenario{
			name: "path " + quoted(path), want: []kubelet.Verdict{verdict}, process: n%9 == 0,
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return get(p, path) }), sites: plain,
		})
	}
	return z
}

// oddHeaders are headers of a probe or hook, and what it finds with them over HTTP/1; http2 over HTTP/2, if that differs.
func oddHeaders() []oddHeader {
	h := header
	return []oddHeader{
		{name: "Host", list: []corev1.HTTPHeader{h("Host", "x.example")}},
		{name: "host", list: []corev1.HTTPHeader{h("host", "x.example")}},
		{name: "HOST", list: []corev1.HTTPHeader{h("HOST", "x.example")}},
		{name: "hOsT and another", list: []corev1.HTTPHeader{h("X-A", "1"), h("hOsT", "x.example"), h("X-B", "2")}},
		{name: "Host with a port", list: []corev1.HTTPHeader{h("Host", "x.example:81")}},
		{name: "Host twice", list: []corev1.HTTPHeader{h("Host", "a"), h("host", "b")}},
		{name: "Host empty", list: []corev1.HTTPHeader{h("Host", "")}},
		{name: "Host empty and then not", list: []corev1.HTTPHeader{h("Host", ""), h("Host", "b")}},
		{name: "Host with a space", list: []corev1.HTTPHeader{h("Host", "a b")}, http2: failure},
		{name: "Host with a slash", list: []corev1.HTTPHeader{h("Host", "a/b")}, http2: failure},
		{name: "Host with Unicode", list: []corev1.HTTPHeader{h("Host", "ä.example")}},
		{name: "Host with a zone", list: []corev1.HTTPHeader{h("Host", "[fe80::1%25eth0]:80")}},
		{name: "Host with a newline", list: []corev1.HTTPHeader{h("Host", "a\nb")}, want: failure},
		{name: "Host with a dollar", list: []corev1.HTTPHeader{h("Host", "$(INSTANCE_IP)")}},
		{name: "User-Agent", list: []corev1.HTTPHeader{h("User-Agent", "mine/1")}},
		{name: "user-agent", list: []corev1.HTTPHeader{h("user-agent", "mine/1")}},
		{name: "User-Agent empty", list: []corev1.HTTPHeader{h("User-Agent", "")}},
		{name: "User-Agent twice", list: []corev1.HTTPHeader{h("User-Agent", "a"), h("User-Agent", "b")}},
		{name: "User-Agent empty and then not", list: []corev1.HTTPHeader{h("User-Agent", ""), h("User-Agent", "b")}},
		{name: "User-Agent of the kubelet", list: []corev1.HTTPHeader{h("User-Agent", "kube-probe/1.1")}},
		{name: "User-Agent of Go", list: []corev1.HTTPHeader{h("User-Agent", "Go-http-client/1.1")}},
		{name: "Accept", list: []corev1.HTTPHeader{h("Accept", "text/html")}},
		{name: "accept twice", list: []corev1.HTTPHeader{h("accept", "application/json"), h("Accept", "*/*")}},
		{name: "Accept empty", list: []corev1.HTTPHeader{h("Accept", "")}},
		{name: "Accept empty and then not", list: []corev1.HTTPHeader{h("Accept", ""), h("Accept", "a/b")}},
		{name: "Accept-Encoding gzip", list: []corev1.HTTPHeader{h("Accept-Encoding", "gzip")}},
		{name: "Accept-Encoding foo", list: []corev1.HTTPHeader{h("Accept-Encoding", "foo")}},
		{name: "Accept-Encoding empty", list: []corev1.HTTPHeader{h("Accept-Encoding", "")}},
		{name: "Connection keep-alive", list: []corev1.HTTPHeader{h("Connection", "keep-alive")}},
		{name: "Connection close", list: []corev1.HTTPHeader{h("Connection", "close")}},
		{name: "Connection upgrade", list: []corev1.HTTPHeader{h("Connection", "Upgrade"), h("Upgrade", "websocket")}, http2: failure},
		{name: "Connection twice", list: []corev1.HTTPHeader{h("Connection", "a"), h("connection", "close, b")}, http2: failure},
		{name: "Keep-Alive", list: []corev1.HTTPHeader{h("Keep-Alive", "timeout=5")}},
		{name: "Content-Length 0", list: []corev1.HTTPHeader{h("Content-Length", "0")}},
		{name: "Content-Length 10", list: []corev1.HTTPHeader{h("Content-Length", "10")}},
		{name: "Content-Type", list: []corev1.HTTPHeader{h("Content-Type", "text/plain")}},
		{name: "Transfer-Encoding chunked", list: []corev1.HTTPHeader{h("Transfer-Encoding", "chunked")}},
		{name: "Trailer", list: []corev1.HTTPHeader{h("Trailer", "X-T")}},
		{name: "TE", list: []corev1.HTTPHeader{h("TE", "trailers")}},
		{name: "Expect", list: []corev1.HTTPHeader{h("Expect", "100-continue")}},
		{name: "Upgrade", list: []corev1.HTTPHeader{h("Upgrade", "h2c")}, http2: failure},
		{name: "HTTP2-Settings", list: []corev1.HTTPHeader{h("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA"), h("Connection", "Upgrade, HTTP2-Settings"), h("Upgrade", "h2c")}, http2: failure},
		{name: "Authorization", list: []corev1.HTTPHeader{h("Authorization", "Bearer secret")}},
		{name: "Proxy-Authorization", list: []corev1.HTTPHeader{h("Proxy-Authorization", "Basic eDp5")}},
		{name: "Proxy-Connection", list: []corev1.HTTPHeader{h("Proxy-Connection", "keep-alive")}},
		{name: "Cookie", list: []corev1.HTTPHeader{h("Cookie", "a=b"), h("Cookie", "c=d")}},
		{name: "Range", list: []corev1.HTTPHeader{h("Range", "bytes=0-1")}},
		{name: "If-None-Match", list: []corev1.HTTPHeader{h("If-None-Match", "*")}},
		{name: "Referer", list: []corev1.HTTPHeader{h("Referer", "http://x/")}},
		{name: "X-Forwarded-For", list: []corev1.HTTPHeader{h("X-Forwarded-For", "1.2.3.4"), h("x-forwarded-proto", "https")}},
		{name: "Sonde-Probe", list: []corev1.HTTPHeader{h("Sonde-Probe", "mine")}},
		{name: "sonde-probe twice", list: []corev1.HTTPHeader{h("sonde-probe", "a"), h("Sonde-Probe", "b")}},
		{name: "repeated", list: []corev1.HTTPHeader{h("X-A", "1"), h("X-B", "2"), h("x-a", "3"), h("X-A", "")}},
		{name: "in each case", list: []corev1.HTTPHeader{h("FOO-bAR", "1"), h("x-y-z", "2"), h("ETag", "3"), h("WWW-authenticate", "4"), h("DNT", "5")}},
		{name: "of digits and dashes", list: []corev1.HTTPHeader{h("1", "a"), h("-", "b"), h("a--b", "c"), h("-a-", "d")}},
		{name: "empty value", list: []corev1.HTTPHeader{h("X-A", "")}},
		{name: "spaces around", list: []corev1.HTTPHeader{h("X-A", "  a  b  ")}},
		{name: "spaces alone", list: []corev1.HTTPHeader{h("X-A", "   ")}},
		{name: "tab", list: []corev1.HTTPHeader{h("X-A", "a\tb"), h("X-B", "\tc\t")}},
		{name: "UTF-8", list: []corev1.HTTPHeader{h("X-A", "ä日本😀")}},
		{name: "quotes and backslashes", list: []corev1.HTTPHeader{h("X-A", `"a\"b\\c'`)}},
		{name: "JSON", list: []corev1.HTTPHeader{h("X-A", `{"a":"<&>\u0024"}`)}},
		{name: "dollars", list: []corev1.HTTPHeader{h("X-A", "$"), h("X-B", "$$"), h("X-C", "$(INSTANCE_IP)"), h("X-D", "$$(INSTANCE_IP)"), h("X-E", "$(NOSUCH)")}},
		{name: "newline", list: []corev1.HTTPHeader{h("X-C", "a\nb")}, want: failure},
		{name: "carriage return", list: []corev1.HTTPHeader{h("X-C", "a\rb")}, want: failure},
		{name: "CRLF and a header", list: []corev1.HTTPHeader{h("X-C", "a\r\nX-D: b")}, want: failure},
		{name: "NUL", list: []corev1.HTTPHeader{h("X-C", "a\x00b")}, want: failure},
		{name: "DEL", list: []corev1.HTTPHeader{h("X-C", "a\x7fb")}, want: failure},
		{name: "8 KiB", list: []corev1.HTTPHeader{h("X-A", strings.Repeat("a", 8192))}},
		{name: "100 of them", list: many(100)},
		{name: "Host with a space behind", list: []corev1.HTTPHeader{h("Host", "x.example ")}, http2: failure},
		{name: "Host with a tab", list: []corev1.HTTPHeader{h("Host", "x\ty")}, http2: failure},
		{name: "Host of a user", list: []corev1.HTTPHeader{h("Host", "user:pass@x")}, http2: failure},
		{name: "Host with a query", list: []corev1.HTTPHeader{h("Host", "a?b#c")}, http2: failure},
		{name: "Host with a backslash", list: []corev1.HTTPHeader{h("Host", `a\b`)}, http2: failure},
		{name: "Host in IPv6", list: []corev1.HTTPHeader{h("Host", "[::1]:80")}},
		{name: "Host of a star", list: []corev1.HTTPHeader{h("Host", "*")}},
		{name: "Host of a list", list: []corev1.HTTPHeader{h("Host", "a,b")}},
		{name: "Host with a bad port", list: []corev1.HTTPHeader{h("Host", "x.example:http")}},
		{name: "Host with DEL", list: []corev1.HTTPHeader{h("Host", "a\x7fb")}, want: failure},
		{name: "Host of 3,000 bytes", list: []corev1.HTTPHeader{h("Host", strings.Repeat("a", 3000))}},
		{name: "Content-Length negative", list: []corev1.HTTPHeader{h("Content-Length", "-1")}},
		{name: "Connection that names Sonde-Probe", list: []corev1.HTTPHeader{h("Connection", "Sonde-Probe, Host")}, http2: failure},
		{name: "Accept of spaces", list: []corev1.HTTPHeader{h("Accept", "  ")}},
		{name: "Proxy", list: []corev1.HTTPHeader{h("Proxy", "http://127.0.0.1:1"), h("Max-Forwards", "0"), h("Via", "1.1 x")}},
		{name: "of WebSocket", list: []corev1.HTTPHeader{h("Connection", "Upgrade"), h("Upgrade", "websocket"), h("Sec-WebSocket-Key", "x")}, http2: failure},
		{name: "of another line end", list: []corev1.HTTPHeader{h("X-A", "a\u0085b\u2028c\u2029d\ufeffe\u00a0")}},
		{name: "of no characters", list: []corev1.HTTPHeader{h("X-A", "\ufffe\uffff\U0010ffff\ufffd")}},
		{name: "of YAML", list: []corev1.HTTPHeader{
			h("X-A", "yes"), h("X-B", "~"), h("X-C", "null"), h("X-D", "0x10"), h("X-E", "1e3"), h("X-F", "- a"), h("X-G", "a: b"), h("X-H", "# c"),
			h("X-I", "&a"), h("X-J", "*a"), h("X-K", "!a"), h("X-L", "%a"), h("X-M", "@a"), h("X-N", "'"), h("X-O", "|"), h("X-P", "2001-01-01"), h("X-Q", "="),
		}},
		{name: "100 KiB", list: []corev1.HTTPHeader{h("X-A", strings.Repeat("a", 100<<10))}},
		{name: "1,000 of them", list: many(1000)},
		{name: "of a name of 9,000 bytes", list: []corev1.HTTPHeader{h(strings.Repeat("a", 9000), "b")}},
	}
}

type oddHeader struct {
	name string
	list []corev1.HTTPHeader
	// want is the verdict. Default: Success. http2 is that over HTTP/2, if it differs.
	want, http2 kubelet.Verdict
}

// headers is a probe with each odd kind of header, over HTTP/1 and HTTP/2, and a hook.
func headers() (z zoo) {
	for _, c := range oddHeaders() {
		n := len(z)
		path := func(p place) corev1.ProbeHandler { return get(p, "/h", c.list...) }
		want := cmp.Or(c.want, success)
		z.add(scenario{name: "header " + c.name, want: []kubelet.Verdict{want}, process: n%20 == 0, containers: one(n/3, patience, path), sites: plain})
		z.add(scenario{
			name: "HTTP/2 header " + c.name, want: []kubelet.Verdict{cmp.Or(c.http2, want)}, process: n%30 == 3,
			containers: one(n/3, patience, func(p place) corev1.ProbeHandler { return getTLS(p, "/h", c.list...) }),
			sites: func(p place) []site {
				return []site{{port: p.app, tls: serverTLS("h2"), answer2: func(y *exchange2) { y.reply2(200, "ok") }}}
			},
		})
		z.add(scenario{
			name: "hook with header " + c.name, want: []kubelet.Verdict{want}, process: n%30 == 6,
			containers: func(p place) []corev1.Container {
				return []corev1.Container{{Name: "app", Lifecycle: &corev1.Lifecycle{PreStop: &corev1.LifecycleHandler{HTTPGet: path(p).HTTPGet}}}}
			},
			sites: plain,
		})
	}
	return z
}

func many(n int) (list []corev1.HTTPHeader) {
	for i := range n {
		list = append(list, header(fmt.Sprintf("X-%d", i*7919%n), strconv.Itoa(i)))
	}
	return list
}
