package cases

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
)

// headerRow has headers of a probe, and the kubelet's verdicts over HTTP/1 and HTTP/2.
type headerRow struct {
	name         string
	http1, http2 Verdict
	list         []corev1.HTTPHeader
}

// list returns headers with these names and values.
func list(pairs ...string) []corev1.HTTPHeader {
	var all []corev1.HTTPHeader
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, header(pairs[i], pairs[i+1]))
	}
	return all
}

// headers has a probe with each unusual kind of header, over HTTP/1 and HTTP/2, and a hook.
func headers() []Case {
	var overHTTP1, overHTTP2, ofHook []Case
	for _, r := range headerRows() {
		overHTTP1 = append(overHTTP1, Case{Name: "header " + r.name, Want: Verdicts{r.http1}, probe: get("/h", r.list...)})
		overHTTP2 = append(overHTTP2, Case{
			Name: "HTTP/2 header " + r.name, Want: Verdicts{r.http2}, probe: getTLS("/h", r.list...), servers: http2s(reply2(200, "ok")),
		})
		ofHook = append(ofHook, Case{
			Name: "hook with header " + r.name, Want: Verdicts{r.http1}, probe: get("/h", r.list...), hook: true, noYAML: r.name == anotherLineEnd,
		})
	}
	return slices.Concat(overHTTP1, overHTTP2, ofHook)
}

const anotherLineEnd = "of another line end"

func headerRows() []headerRow {
	return []headerRow{
		{"Host", Success, Success, list("Host", "x.example")},
		{"host", Success, Success, list("host", "x.example")},
		{"HOST", Success, Success, list("HOST", "x.example")},
		{"hOsT and another", Success, Success, list("X-A", "1", "hOsT", "x.example", "X-B", "2")},
		{"Host with a port", Success, Success, list("Host", "x.example:81")},
		{"Host twice", Success, Success, list("Host", "a", "host", "b")},
		{"Host empty", Success, Success, list("Host", "")},
		{"Host empty and then not", Success, Success, list("Host", "", "Host", "b")},
		{"Host with a space", Success, Failure, list("Host", "a b")},
		{"Host with a slash", Success, Failure, list("Host", "a/b")},
		{"Host with Unicode", Success, Success, list("Host", "ä.example")},
		{"Host with a zone", Success, Success, list("Host", "[fe80::1%25eth0]:80")},
		{"Host with a newline", Failure, Failure, list("Host", "a\nb")},
		{"Host with a dollar", Success, Success, list("Host", "$(INSTANCE_IP)")},
		{"User-Agent", Success, Success, list("User-Agent", "mine/1")},
		{"user-agent", Success, Success, list("user-agent", "mine/1")},
		{"User-Agent empty", Success, Success, list("User-Agent", "")},
		{"User-Agent twice", Success, Success, list("User-Agent", "a", "User-Agent", "b")},
		{"User-Agent empty and then not", Success, Success, list("User-Agent", "", "User-Agent", "b")},
		{"User-Agent of the kubelet", Success, Success, list("User-Agent", "kube-probe/1.1")},
		{"User-Agent of Go", Success, Success, list("User-Agent", "Go-http-client/1.1")},
		{"Accept", Success, Success, list("Accept", "text/html")},
		{"accept twice", Success, Success, list("accept", "application/json", "Accept", "*/*")},
		{"Accept empty", Success, Success, list("Accept", "")},
		{"Accept empty and then not", Success, Success, list("Accept", "", "Accept", "a/b")},
		{"Accept-Encoding gzip", Success, Success, list("Accept-Encoding", "gzip")},
		{"Accept-Encoding foo", Success, Success, list("Accept-Encoding", "foo")},
		{"Accept-Encoding empty", Success, Success, list("Accept-Encoding", "")},
		{"Connection keep-alive", Success, Success, list("Connection", "keep-alive")},
		{"Connection close", Success, Success, list("Connection", "close")},
		{"Connection upgrade", Success, Failure, list("Connection", "Upgrade", "Upgrade", "websocket")},
		{"Connection twice", Success, Failure, list("Connection", "a", "connection", "close, b")},
		{"Keep-Alive", Success, Success, list("Keep-Alive", "timeout=5")},
		{"Content-Length 0", Success, Success, list("Content-Length", "0")},
		{"Content-Length 10", Success, Success, list("Content-Length", "10")},
		{"Content-Type", Success, Success, list("Content-Type", "text/plain")},
		{"Transfer-Encoding chunked", Success, Success, list("Transfer-Encoding", "chunked")},
		{"Trailer", Success, Success, list("Trailer", "X-T")},
		{"TE", Success, Success, list("TE", "trailers")},
		{"Expect", Success, Success, list("Expect", "100-continue")},
		{"Upgrade", Success, Failure, list("Upgrade", "h2c")},
		{
			"HTTP2-Settings", Success, Failure,
			list("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c"),
		},
		{"Authorization", Success, Success, list("Authorization", "Bearer secret")},
		{"Proxy-Authorization", Success, Success, list("Proxy-Authorization", "Basic eDp5")},
		{"Proxy-Connection", Success, Success, list("Proxy-Connection", "keep-alive")},
		{"Cookie", Success, Success, list("Cookie", "a=b", "Cookie", "c=d")},
		{"Range", Success, Success, list("Range", "bytes=0-1")},
		{"If-None-Match", Success, Success, list("If-None-Match", "*")},
		{"Referer", Success, Success, list("Referer", "http://x/")},
		{"X-Forwarded-For", Success, Success, list("X-Forwarded-For", "1.2.3.4", "x-forwarded-proto", "https")},
		{"Sonde-Probe", Success, Success, list("Sonde-Probe", "mine")},
		{"sonde-probe twice", Success, Success, list("sonde-probe", "a", "Sonde-Probe", "b")},
		{"repeated", Success, Success, list("X-A", "1", "X-B", "2", "x-a", "3", "X-A", "")},
		{
			"in each case", Success, Success,
			list("FOO-bAR", "1", "x-y-z", "2", "ETag", "3", "WWW-authenticate", "4", "DNT", "5"),
		},
		{"of digits and dashes", Success, Success, list("1", "a", "-", "b", "a--b", "c", "-a-", "d")},
		{"empty value", Success, Success, list("X-A", "")},
		{"spaces around", Success, Success, list("X-A", "  a  b  ")},
		{"spaces alone", Success, Success, list("X-A", "   ")},
		{"tab", Success, Success, list("X-A", "a\tb", "X-B", "\tc\t")},
		{"UTF-8", Success, Success, list("X-A", "ä日本😀")},
		{"quotes and backslashes", Success, Success, list("X-A", `"a\"b\\c'`)},
		{"JSON", Success, Success, list("X-A", `{"a":"<&>\u0024"}`)},
		{
			"dollars", Success, Success,
			list("X-A", "$", "X-B", "$$", "X-C", "$(INSTANCE_IP)", "X-D", "$$(INSTANCE_IP)", "X-E", "$(NOSUCH)"),
		},
		{"newline", Failure, Failure, list("X-C", "a\nb")},
		{"carriage return", Failure, Failure, list("X-C", "a\rb")},
		{"CRLF and a header", Failure, Failure, list("X-C", "a\r\nX-D: b")},
		{"NUL", Failure, Failure, list("X-C", "a\x00b")},
		{"DEL", Failure, Failure, list("X-C", "a\x7fb")},
		{"8 KiB", Success, Success, list("X-A", strings.Repeat("a", 8192))},
		{"100 of them", Success, Success, many(100)},
		{"Host with a space behind", Success, Failure, list("Host", "x.example ")},
		{"Host with a tab", Success, Failure, list("Host", "x\ty")},
		{"Host of a user", Success, Failure, list("Host", "user:pass@x")},
		{"Host with a query", Success, Failure, list("Host", "a?b#c")},
		{"Host with a backslash", Success, Failure, list("Host", `a\b`)},
		{"Host in IPv6", Success, Success, list("Host", "[::1]:80")},
		{"Host of a star", Success, Success, list("Host", "*")},
		{"Host of a list", Success, Success, list("Host", "a,b")},
		{"Host with a bad port", Success, Success, list("Host", "x.example:http")},
		{"Host with DEL", Failure, Failure, list("Host", "a\x7fb")},
		{"Host of 3,000 bytes", Success, Success, list("Host", strings.Repeat("a", 3000))},
		{"Content-Length negative", Success, Success, list("Content-Length", "-1")},
		{"Connection that names Sonde-Probe", Success, Failure, list("Connection", "Sonde-Probe, Host")},
		{"Accept of spaces", Success, Success, list("Accept", "  ")},
		{"Proxy", Success, Success, list("Proxy", "http://127.0.0.1:1", "Max-Forwards", "0", "Via", "1.1 x")},
		{"of WebSocket", Success, Failure, list("Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "x")},
		{anotherLineEnd, Success, Success, list("X-A", "a\u0085b\u2028c\u2029d\ufeffe\u00a0")},
		{"of no characters", Success, Success, list("X-A", "\ufffe\uffff\U0010ffff\ufffd")},
		{"of YAML", Success, Success, list("X-A", "yes", "X-B", "~", "X-C", "null", "X-D", "0x10", "X-E", "1e3",
			"X-F", "- a", "X-G", "a: b", "X-H", "# c", "X-I", "&a", "X-J", "*a", "X-K", "!a", "X-L", "%a", "X-M", "@a",
			"X-N", "'", "X-O", "|", "X-P", "2001-01-01", "X-Q", "=")},
		{"100 KiB", Success, Success, list("X-A", strings.Repeat("a", 100<<10))},
		{"1,000 of them", Success, Success, many(1000)},
		{"of a name of 9,000 bytes", Success, Success, list(strings.Repeat("a", 9000), "b")},
	}
}

func many(n int) (list []corev1.HTTPHeader) {
	for i := range n {
		list = append(list, header(fmt.Sprintf("X-%d", i*7919%n), strconv.Itoa(i)))
	}
	return list
}
