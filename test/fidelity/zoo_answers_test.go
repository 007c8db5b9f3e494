package fidelity_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// bodies is an answer with each odd kind of body.
func bodies() (z zoo) {
	big := strings.Repeat("x", 1<<20)
	const k10 = 10 << 10
	head := func(code int, headers string) string {
		return fmt.Sprintf("HTTP/1.1 %d Reason\r\n%s\r\n", code, headers)
	}
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	const chunked = "Transfer-Encoding: chunked\r\n"
	answers := []struct {
		name string
		want kubelet.Verdict
		text string
	}{
		{"none", success, head(200, length(0))},
		{"none, no length, closed", success, head(200, "")},
		{"until the end of the connection", success, head(200, "") + "ok"},
		{"until the end, 1 MiB", success, head(200, "") + big},
		{"one byte", success, head(200, length(1)) + "x"},
		{"10 KiB - 1", success, head(200, length(k10-1)) + big[:k10-1]},
		{"10 KiB", success, head(200, length(k10)) + big[:k10]},
		{"10 KiB + 1", success, head(200, length(k10+1)) + big[:k10+1]},
		{"1 MiB", success, head(200, length(1<<20)) + big},
		{"1 MiB with 500", failure, head(500, length(1<<20)) + big},
		{"cut at once", errored, head(200, length(100))},
		{"cut", errored, head(200, length(100)) + "short"},
		{"cut by one byte", errored, head(200, length(100)) + big[:99]},
		{"cut with 500", errored, head(500, length(100)) + "short"},
		{"cut with 404", errored, head(404, length(100)) + "short"},
		{"cut with 304", warning, head(304, length(100))},
		{"cut with 204", success, head(204, length(100))},
		{"cut far behind 10 KiB", success, head(200, length(1<<20)) + big[:100<<10]},
		{"longer than it says", success, head(200, length(2)) + "okay and more"},
		{"Content-Length of two", failure, head(200, "Content-Length: 2\r\nContent-Length: 3\r\n") + "ok"},
		{"Content-Length twice the same", success, head(200, "Content-Length: 2\r\nContent-Length: 2\r\n") + "ok"},
		{"Content-Length negative", failure, head(200, "Content-Length: -1\r\n") + "ok"},
		{"Content-Length a word", failure, head(200, "Content-Length: two\r\n") + "ok"},
		{"Content-Length with a plus", failure, head(200, "Content-Length: +2\r\n") + "ok"},
		{"Content-Length empty", failure, head(200, "Content-Length: \r\n")},
		{"Content-Length too large", failure, head(200, "Content-Length: 99999999999999999999\r\n") + "ok"},
		{"Content-Length and chunks", success, head(200, "Content-Length: 50\r\n"+chunked) + "2\r\nok\r\n0\r\n\r\n"},
		{"chunks", success, head(200, chunked) + "2\r\nok\r\n3\r\nyes\r\n0\r\n\r\n"},
		{"chunks with a trailer", success, head(200, chunked+"Trailer: X-T\r\n") + "2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"},
		{"chunks with an extension", success, head(200, chunked) + "2;a=b\r\nok\r\n0\r\n\r\n"},
		{"chunks of 1 MiB", success, head(200, chunked) + "100000\r\n" + big + "\r\n0\r\n\r\n"},
		{"chunks, cut between", errored, head(200, chunked) + "2\r\nok\r\n"},
		{"chunks, cut inside", errored, head(200, chunked) + "20\r\nok"},
		{"chunks, the end cut", errored, head(200, chunked) + "2\r\nok\r\n0\r\n"},
		{"chunks, cut before the first", errored, head(200, chunked)},
		{"chunk of a wrong size", errored, head(200, chunked) + "zz\r\nok\r\n0\r\n\r\n"},
		{"chunk longer than it says", errored, head(200, chunked) + "2\r\nokay\r\n0\r\n\r\n"},
		{"chunk without CR", errored, head(200, chunked) + "2\nok\r\n0\r\n\r\n"},
		{"chunk with an extension of 3 KB", success, head(200, chunked) + "2;" + big[:3000] + "\r\nok\r\n0\r\n\r\n"},
		{"chunk with an extension of 5 KB", errored, head(200, chunked) + "2;" + big[:5000] + "\r\nok\r\n0\r\n\r\n"},
		{"chunks with much else, little by little", errored, head(200, chunked) + strings.Repeat("1;"+big[:100]+"\r\nx\r\n", 300) + "0\r\n\r\n"},
		{"chunks of one byte", success, head(200, chunked) + strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n"},
		{"chunks with a trailer of 3 KB", success, head(200, chunked) + "2\r\nok\r\n0\r\nX: " + big[:3000] + "\r\n\r\n"},
		{"chunks with a trailer of 5 KB", errored, head(200, chunked) + "2\r\nok\r\n0\r\nX: " + big[:5000] + "\r\n\r\n"},
		{"chunks with a wrong trailer", errored, head(200, chunked) + "2\r\nok\r\n0\r\nwrong\r\n\r\n"},
		{"chunks with a trailer that is cut", errored, head(200, chunked) + "2\r\nok\r\n0\r\nX: y\r\n"},
		{"cut at 10 KiB", success, head(200, length(1<<20)) + big[:k10]},
		{"cut at 10 KiB - 1", errored, head(200, length(1<<20)) + big[:k10-1]},
		{"Content-Length of 8 EiB, cut", errored, head(200, "Content-Length: 9223372036854775807\r\n") + "ok"},
		{"Content-Length in a list", failure, head(200, "Content-Length: 2, 2\r\n") + "ok"},
		{"Content-Length in hexadecimal", failure, head(200, "Content-Length: 0x2\r\n") + "ok"},
		{"Content-Length on a line of its own", success, head(200, "Content-Length:\r\n 2\r\n") + "ok"},
		{"Content-Length wrong, and chunks", failure, head(200, "Content-Length: x\r\n"+chunked) + "0\r\n\r\n"},
		{"Transfer-Encoding twice", failure, head(200, chunked+chunked) + "0\r\n\r\n"},
		{"Transfer-Encoding empty", failure, head(200, "Transfer-Encoding: \r\n"+length(2)) + "ok"},
		{"chunk of a huge size", errored, head(200, chunked) + "fffffffffffffffff\r\nok\r\n"},
		{"Transfer-Encoding gzip", failure, head(200, "Transfer-Encoding: gzip\r\n") + "ok"},
		{"Transfer-Encoding gzip, chunked", failure, head(200, "Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n"},
		{"Transfer-Encoding identity", failure, head(200, "Transfer-Encoding: identity\r\n"+length(2)) + "ok"},
		{"gzip that lies", success, head(200, "Content-Encoding: gzip\r\n"+length(2)) + "ok"},
		{"gzip that does not", success, head(200, "Content-Encoding: gzip\r\n"+length(len(zipped("ok")))) + zipped("ok")},
		{"gzip that is cut", success, head(200, "Content-Encoding: gzip\r\n"+length(5)) + zipped("ok")[:5]},
		{"br", success, head(200, "Content-Encoding: br\r\n"+length(2)) + "ok"},
		{"of HTTP/1.0", success, "HTTP/1.0 200 OK\r\n\r\nok"},
		{"of HTTP/1.0 with a length", success, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"of HTTP/1.0, cut", errored, "HTTP/1.0 200 OK\r\nContent-Length: 20\r\n\r\nok"},
		{"of HTTP/1.0 in chunks", success, "HTTP/1.0 200 OK\r\n" + chunked + "\r\n2\r\nok\r\n0\r\n\r\n"},
		{"with 204", success, head(204, "") + "ok"},
		{"HTML", success, head(200, "Content-Type: text/html\r\n"+length(15)) + "<html>ok</html>"},
		{"of each byte", success, head(200, length(256)) + everyByte()},
	}
	for _, c := range answers {
		z.http("body "+c.name, c.want, func(_ place, x *exchange) {
			x.raw(c.text)
			x.close()
		})
	}
	z.http("body reset", errored, func(_ place, x *exchange) {
		x.raw(head(200, length(100)) + "short")
		if x.wait(200 * time.Millisecond) { // a reset takes what has not been read with it
			x.reset()
		}
	})
	z.last().timing = true
	z.http("body cut twice, then whole", success, func(_ place, x *exchange) {
		if x.n < 3 {
			x.raw(head(200, length(100)) + "short")
			x.close()
			return
		}
		x.reply(200, "ok")
	})
	z.http("body cut twice, then 503", failure, func(_ place, x *exchange) {
		if x.n < 3 {
			x.raw(head(200, length(100)) + "short")
			x.close()
			return
		}
		x.reply(503, "no")
	})
	return z
}

func zipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text)) // memory takes all
	_ = w.Close()
	return b.String()
}

func everyByte() string {
	var b strings.Builder
	for c := range 256 {
		b.WriteByte(byte(c))
	}
	return b.String()
}

// wrongServers do not speak HTTP as they should.
func wrongServers() (z zoo) {
	manyHeaders := func(n, size int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "X-%d: %s\r\n", i, strings.Repeat("x", size))
		}
		return b.String()
	}
	const end = "Content-Length: 0\r\n\r\n"
	for _, c := range []struct {
		name string
		want kubelet.Verdict
		text string
	}{
		{"nothing and closes", failure, ""},
		{"one byte", failure, "H"},
		{"half a status line", failure, "HTTP/1.1 200"},
		{"a status line alone", failure, "HTTP/1.1 200 OK\r\n"},
		{"half the headers", failure, "HTTP/1.1 200 OK\r\nX-A: b\r\n"},
		{"garbage", failure, "\x00\x01\x02\x03garbage\r\n\r\n"},
		{"HTTP/0.9", failure, "<html>old</html>\n"},
		{"SSH", failure, "SSH-2.0-OpenSSH_9\r\n"},
		{"SMTP", failure, "220 mail.example ESMTP\r\n"},
		{"TLS", failure, "\x15\x03\x01\x00\x02\x02\x28"},
		{"HTTP/2", failure, "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
		{"an empty line before", failure, "\r\nHTTP/1.1 200 OK\r\n" + end},
		{"lines with LF alone", success, "HTTP/1.1 200 OK\nContent-Length: 0\n\n"},
		{"a header without colon", failure, "HTTP/1.1 200 OK\r\nX-A\r\n" + end},
		{"a header with a space", success, "HTTP/1.1 200 OK\r\nX A: b\r\n" + end},
		{"a header of an empty name", failure, "HTTP/1.1 200 OK\r\n: b\r\n" + end},
		{"a header with NUL", failure, "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\n" + end},
		{"a header with CR", failure, "HTTP/1.1 200 OK\r\nX-A: a\rb\r\n" + end},
		{"a header in quotes", failure, "HTTP/1.1 200 OK\r\n\"X-A\": b\r\n" + end},
		{"a space before the colon", success, "HTTP/1.1 200 OK\r\nX-A : b\r\n" + end},
		{"CR twice", success, "HTTP/1.1 200 OK\r\r\n" + end},
		{"a byte order mark", failure, "\ufeffHTTP/1.1 200 OK\r\n" + end},
		{"a status line of 1 MiB", success, "HTTP/1.1 200 " + strings.Repeat("x", 1<<20) + "\r\n" + end},
		{"408 to nobody", failure, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"},
		{"200 with an upgrade", success, "HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\n" + end},
		{"a header of odd bytes", failure, "HTTP/1.1 200 OK\r\nX-A: \x01\xff\r\n" + end},
		{"a folded header", success, "HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\n" + end},
		{"a header that begins with a space", failure, "HTTP/1.1 200 OK\r\n X-A: a\r\n" + end},
		{"101 headers", success, "HTTP/1.1 200 OK\r\n" + manyHeaders(101, 1) + end},
		{"5,000 headers", success, "HTTP/1.1 200 OK\r\n" + manyHeaders(5000, 1) + end},
		{"a header of 70 KB", success, "HTTP/1.1 200 OK\r\n" + manyHeaders(1, 70000) + end},
		{"a header of 2 MiB", success, "HTTP/1.1 200 OK\r\n" + manyHeaders(1, 2<<20) + end},
		{"a header of 11 MiB", failure, "HTTP/1.1 200 OK\r\n" + manyHeaders(1, 11<<20) + end},
		{"Sonde-Probe", success, "HTTP/1.1 200 OK\r\nSonde-Probe: x\r\nLocation: http://elsewhere.example/\r\n" + end},
		{"two answers", success, "HTTP/1.1 200 OK\r\n" + end + "HTTP/1.1 500 No\r\n" + end},
		{"Connection: keep-alive and closes", success, "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n" + end},
	} {
		z.http("server says "+c.name, c.want, func(_ place, x *exchange) {
			x.raw(c.text)
			x.close()
		})
	}
	z.http("server resets after the request", failure, func(_ place, x *exchange) { x.reset() })
	z.http("server resets within the headers", failure, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\n")
		if x.wait(200 * time.Millisecond) {
			x.reset()
		}
	})
	z.last().timing = true
	z.http("server resets after a whole answer", success, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		if x.wait(200 * time.Millisecond) {
			x.reset()
		}
	})
	z.last().timing = true
	z.http("server keeps the connection open", success, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		x.hang()
	})
	z.http("server ends its half of the connection after an answer", success, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\n\r\nok")
		x.closed = true
		x.drain()
	})
	z.http("server ends its half of the connection instead of an answer", failure, func(_ place, x *exchange) {
		x.closed = true
		x.drain()
	})
	z.http("server answers slowly, byte by byte", success, func(_ place, x *exchange) {
		for _, c := range "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok" {
			x.raw(string(c))
		}
		x.close()
	})
	before := func(name string, want kubelet.Verdict, connection func(*exchange)) {
		n := len(z)
		z.add(scenario{
			name: "server " + name, want: []kubelet.Verdict{want},
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return get(p, "/probe") }),
			sites:      func(p place) []site { return []site{{port: p.app, connection: connection}} },
		})
	}
	before("closes at once", failure, func(x *exchange) { x.close() })
	before("resets at once", failure, func(x *exchange) { x.reset() })
	before("answers 200 after the first line of the request", success, func(x *exchange) {
		x.buffer()
		_, _ = x.read.ReadString('\n') // it comes with the rest
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		x.hang()
	})
	z.add(scenario{
		name: "server is not there", want: []kubelet.Verdict{failure}, process: true,
		containers: one(1, patience, func(p place) corev1.ProbeHandler { return get(p, "/probe") }),
		sites:      func(place) []site { return nil },
	})
	return z
}

// times is what comes just before and after the timeout.
func times() (z zoo) {
	const head = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n"
	z.httpIn("answer at 1.4 s of 2", 2, success, func(_ place, x *exchange) {
		if x.wait(seconds(1.4)) {
			x.reply(200, "ok")
		}
	})
	z.httpIn("answer at 2.4 s of 2", 2, failure, func(_ place, x *exchange) {
		if x.wait(seconds(2.4)) {
			x.reply(200, "ok")
		}
	})
	z.httpIn("answer 500 at 2.4 s of 2", 2, failure, func(_ place, x *exchange) {
		if x.wait(seconds(2.4)) {
			x.reply(500, "ok")
		}
	})
	z.httpIn("answer at 2.6 s of 3", 3, success, func(_ place, x *exchange) {
		if x.wait(seconds(2.6)) {
			x.reply(200, "ok")
		}
	})
	z.httpIn("timeout of 68 years", 2147483647, success, func(_ place, x *exchange) { x.reply(200, "ok") })
	z.httpIn("answer never", 1, failure, func(_ place, x *exchange) { x.hang() })
	z.httpIn("answer's headers never end", 1, failure, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\n")
		x.hang()
	})
	z.httpIn("interim answers for ever", 1, failure, func(_ place, x *exchange) {
		for x.wait(100 * time.Millisecond) {
			if _, err := x.conn.Write([]byte("HTTP/1.1 103 Early\r\n\r\n")); err != nil {
				return
			}
		}
	})
	z.httpIn("headers byte by byte for 1.5 s of 4", 4, success, func(_ place, x *exchange) {
		x.slowly("HTTP/1.1 200 OK\r\nX: y\r\n\r\nok", 50*time.Millisecond)
		x.close()
	})
	z.httpIn("body at 1.4 s of 2", 2, success, func(_ place, x *exchange) {
		x.raw(head)
		if x.wait(seconds(1.4)) {
			x.raw("ok")
			x.close()
		}
	})
	z.httpIn("body at 2.4 s of 2", 2, errored, func(_ place, x *exchange) {
		x.raw(head)
		if x.wait(seconds(2.4)) {
			x.raw("ok")
			x.close()
		}
	})
	z.httpIn("body never", 1, errored, func(_ place, x *exchange) {
		x.raw(head)
		x.hang()
	})
	z.httpIn("body never, with 503", 1, errored, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 503 No\r\nContent-Length: 2\r\n\r\n")
		x.hang()
	})
	z.httpIn("chunks for ever, slowly", 1, errored, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
		for x.wait(50 * time.Millisecond) {
			if _, err := x.conn.Write([]byte("1\r\nx\r\n")); err != nil {
				return
			}
		}
	})
	z.httpIn("10 KiB and then never the rest", 1, success, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 20<<10))
		x.hang()
	})
	z.httpIn("10 KiB exactly and then never the rest", 1, success, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n" + strings.Repeat("x", 10<<10))
		x.hang()
	})
	z.httpIn("body without a length never ends", 1, errored, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\n\r\nok")
		x.hang()
	})
	z.httpIn("trailer never", 1, errored, func(_ place, x *exchange) {
		x.raw("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n")
		x.hang()
	})
	z.add(scenario{
		name: "request is larger than the buffer of a server that hangs", want: []kubelet.Verdict{failure}, timing: true, process: true,
		containers: one(0, 1, func(p place) corev1.ProbeHandler { return get(p, "/", header("Cookie", strings.Repeat("x", 100<<10))) }),
		sites: func(p place) []site {
			return []site{{port: p.app, listen: listenSmall, connection: func(x *exchange) { x.wait(seconds(2.5)) }}}
		},
	})
	z.httpIn("two redirects of 1.2 s each, of 2", 2, failure, func(_ place, x *exchange) {
		if !x.wait(seconds(1.2)) {
			return
		}
		if x.n < 3 {
			x.reply(302, "", fmt.Sprint("Location: /", x.n))
			return
		}
		x.reply(200, "")
	})
	z.httpIn("two redirects of 0.5 s each, of 3", 3, success, func(_ place, x *exchange) {
		if !x.wait(seconds(0.5)) {
			return
		}
		if x.n < 3 {
			x.reply(302, "", fmt.Sprint("Location: /", x.n))
			return
		}
		x.reply(200, "")
	})
	return z
}
