package fidelity_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// headerRow is headers of a probe, and what the kubelet finds with them over HTTP/1 and HTTP/2.
type headerRow struct {
	name         string
	http1, http2 kubelet.Verdict
	list         []corev1.HTTPHeader
}

// list makes headers of names and values.
func list(pairs ...string) []corev1.HTTPHeader {
	var all []corev1.HTTPHeader
	for i := 0; i+1 < len(pairs); i += 2 {
		all = append(all, header(pairs[i], pairs[i+1]))
	}
	return all
}

// headers is a probe with each odd kind of header, over HTTP/1 and HTTP/2, and a hook.
func headers() []testCase {
	var overHTTP1, overHTTP2, ofHook []testCase
	for _, r := range headerRows() {
		overHTTP1 = append(overHTTP1, testCase{name: "header " + r.name, want: verdicts{r.http1}, probe: get("/h", r.list...)})
		overHTTP2 = append(overHTTP2, testCase{
			name: "HTTP/2 header " + r.name, want: verdicts{r.http2}, probe: getTLS("/h", r.list...), servers: http2s(reply2(200, "ok")),
		})
		ofHook = append(ofHook, testCase{
			name: "hook with header " + r.name, want: verdicts{r.http1}, probe: get("/h", r.list...), hook: true, noYAML: r.name == anotherLineEnd,
		})
	}
	return slices.Concat(overHTTP1, overHTTP2, ofHook)
}

const anotherLineEnd = "of another line end"

func headerRows() []headerRow {
	return []headerRow{
		{"Host", success, success, list("Host", "x.example")},
		{"host", success, success, list("host", "x.example")},
		{"HOST", success, success, list("HOST", "x.example")},
		{"hOsT and another", success, success, list("X-A", "1", "hOsT", "x.example", "X-B", "2")},
		{"Host with a port", success, success, list("Host", "x.example:81")},
		{"Host twice", success, success, list("Host", "a", "host", "b")},
		{"Host empty", success, success, list("Host", "")},
		{"Host empty and then not", success, success, list("Host", "", "Host", "b")},
		{"Host with a space", success, failure, list("Host", "a b")},
		{"Host with a slash", success, failure, list("Host", "a/b")},
		{"Host with Unicode", success, success, list("Host", "ä.example")},
		{"Host with a zone", success, success, list("Host", "[fe80::1%25eth0]:80")},
		{"Host with a newline", failure, failure, list("Host", "a\nb")},
		{"Host with a dollar", success, success, list("Host", "$(INSTANCE_IP)")},
		{"User-Agent", success, success, list("User-Agent", "mine/1")},
		{"user-agent", success, success, list("user-agent", "mine/1")},
		{"User-Agent empty", success, success, list("User-Agent", "")},
		{"User-Agent twice", success, success, list("User-Agent", "a", "User-Agent", "b")},
		{"User-Agent empty and then not", success, success, list("User-Agent", "", "User-Agent", "b")},
		{"User-Agent of the kubelet", success, success, list("User-Agent", "kube-probe/1.1")},
		{"User-Agent of Go", success, success, list("User-Agent", "Go-http-client/1.1")},
		{"Accept", success, success, list("Accept", "text/html")},
		{"accept twice", success, success, list("accept", "application/json", "Accept", "*/*")},
		{"Accept empty", success, success, list("Accept", "")},
		{"Accept empty and then not", success, success, list("Accept", "", "Accept", "a/b")},
		{"Accept-Encoding gzip", success, success, list("Accept-Encoding", "gzip")},
		{"Accept-Encoding foo", success, success, list("Accept-Encoding", "foo")},
		{"Accept-Encoding empty", success, success, list("Accept-Encoding", "")},
		{"Connection keep-alive", success, success, list("Connection", "keep-alive")},
		{"Connection close", success, success, list("Connection", "close")},
		{"Connection upgrade", success, failure, list("Connection", "Upgrade", "Upgrade", "websocket")},
		{"Connection twice", success, failure, list("Connection", "a", "connection", "close, b")},
		{"Keep-Alive", success, success, list("Keep-Alive", "timeout=5")},
		{"Content-Length 0", success, success, list("Content-Length", "0")},
		{"Content-Length 10", success, success, list("Content-Length", "10")},
		{"Content-Type", success, success, list("Content-Type", "text/plain")},
		{"Transfer-Encoding chunked", success, success, list("Transfer-Encoding", "chunked")},
		{"Trailer", success, success, list("Trailer", "X-T")},
		{"TE", success, success, list("TE", "trailers")},
		{"Expect", success, success, list("Expect", "100-continue")},
		{"Upgrade", success, failure, list("Upgrade", "h2c")},
		{"HTTP2-Settings", success, failure, list("HTTP2-Settings", "AAMAAABkAARAAAAAAAIAAAAA", "Connection", "Upgrade, HTTP2-Settings", "Upgrade", "h2c")},
		{"Authorization", success, success, list("Authorization", "Bearer secret")},
		{"Proxy-Authorization", success, success, list("Proxy-Authorization", "Basic eDp5")},
		{"Proxy-Connection", success, success, list("Proxy-Connection", "keep-alive")},
		{"Cookie", success, success, list("Cookie", "a=b", "Cookie", "c=d")},
		{"Range", success, success, list("Range", "bytes=0-1")},
		{"If-None-Match", success, success, list("If-None-Match", "*")},
		{"Referer", success, success, list("Referer", "http://x/")},
		{"X-Forwarded-For", success, success, list("X-Forwarded-For", "1.2.3.4", "x-forwarded-proto", "https")},
		{"Sonde-Probe", success, success, list("Sonde-Probe", "mine")},
		{"sonde-probe twice", success, success, list("sonde-probe", "a", "Sonde-Probe", "b")},
		{"repeated", success, success, list("X-A", "1", "X-B", "2", "x-a", "3", "X-A", "")},
		{"in each case", success, success, list("FOO-bAR", "1", "x-y-z", "2", "ETag", "3", "WWW-authenticate", "4", "DNT", "5")},
		{"of digits and dashes", success, success, list("1", "a", "-", "b", "a--b", "c", "-a-", "d")},
		{"empty value", success, success, list("X-A", "")},
		{"spaces around", success, success, list("X-A", "  a  b  ")},
		{"spaces alone", success, success, list("X-A", "   ")},
		{"tab", success, success, list("X-A", "a\tb", "X-B", "\tc\t")},
		{"UTF-8", success, success, list("X-A", "ä日本😀")},
		{"quotes and backslashes", success, success, list("X-A", `"a\"b\\c'`)},
		{"JSON", success, success, list("X-A", `{"a":"<&>\u0024"}`)},
		{"dollars", success, success, list("X-A", "$", "X-B", "$$", "X-C", "$(INSTANCE_IP)", "X-D", "$$(INSTANCE_IP)", "X-E", "$(NOSUCH)")},
		{"newline", failure, failure, list("X-C", "a\nb")},
		{"carriage return", failure, failure, list("X-C", "a\rb")},
		{"CRLF and a header", failure, failure, list("X-C", "a\r\nX-D: b")},
		{"NUL", failure, failure, list("X-C", "a\x00b")},
		{"DEL", failure, failure, list("X-C", "a\x7fb")},
		{"8 KiB", success, success, list("X-A", strings.Repeat("a", 8192))},
		{"100 of them", success, success, many(100)},
		{"Host with a space behind", success, failure, list("Host", "x.example ")},
		{"Host with a tab", success, failure, list("Host", "x\ty")},
		{"Host of a user", success, failure, list("Host", "user:pass@x")},
		{"Host with a query", success, failure, list("Host", "a?b#c")},
		{"Host with a backslash", success, failure, list("Host", `a\b`)},
		{"Host in IPv6", success, success, list("Host", "[::1]:80")},
		{"Host of a star", success, success, list("Host", "*")},
		{"Host of a list", success, success, list("Host", "a,b")},
		{"Host with a bad port", success, success, list("Host", "x.example:http")},
		{"Host with DEL", failure, failure, list("Host", "a\x7fb")},
		{"Host of 3,000 bytes", success, success, list("Host", strings.Repeat("a", 3000))},
		{"Content-Length negative", success, success, list("Content-Length", "-1")},
		{"Connection that names Sonde-Probe", success, failure, list("Connection", "Sonde-Probe, Host")},
		{"Accept of spaces", success, success, list("Accept", "  ")},
		{"Proxy", success, success, list("Proxy", "http://127.0.0.1:1", "Max-Forwards", "0", "Via", "1.1 x")},
		{"of WebSocket", success, failure, list("Connection", "Upgrade", "Upgrade", "websocket", "Sec-WebSocket-Key", "x")},
		{anotherLineEnd, success, success, list("X-A", "a\u0085b\u2028c\u2029d\ufeffe\u00a0")},
		{"of no characters", success, success, list("X-A", "\ufffe\uffff\U0010ffff\ufffd")},
		{"of YAML", success, success, list("X-A", "yes", "X-B", "~", "X-C", "null", "X-D", "0x10", "X-E", "1e3", "X-F", "- a", "X-G", "a: b", "X-H", "# c",
			"X-I", "&a", "X-J", "*a", "X-K", "!a", "X-L", "%a", "X-M", "@a", "X-N", "'", "X-O", "|", "X-P", "2001-01-01", "X-Q", "=")},
		{"100 KiB", success, success, list("X-A", strings.Repeat("a", 100<<10))},
		{"1,000 of them", success, success, many(1000)},
		{"of a name of 9,000 bytes", success, success, list(strings.Repeat("a", 9000), "b")},
	}
}

func many(n int) (list []corev1.HTTPHeader) {
	for i := range n {
		list = append(list, header(fmt.Sprintf("X-%d", i*7919%n), strconv.Itoa(i)))
	}
	return list
}
