package cases

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
)

// bodies has an answer with each odd kind of body.
func bodies() []Case {
	big := strings.Repeat("x", 1<<20)
	const k10 = 10 << 10
	head := func(code int, headers string) string {
		return fmt.Sprintf("HTTP/1.1 %d Reason\r\n%s\r\n", code, headers)
	}
	length := func(n int) string { return fmt.Sprintf("Content-Length: %d\r\n", n) }
	const chunked = "Transfer-Encoding: chunked\r\n"
	texts := []struct {
		name string
		want Verdict
		text string
	}{
		{"none", Success, head(200, length(0))},
		{"none, no length, closed", Success, head(200, "")},
		{"until the end of the connection", Success, head(200, "") + "ok"},
		{"until the end, 1 MiB", Success, head(200, "") + big},
		{"one byte", Success, head(200, length(1)) + "x"},
		{"10 KiB - 1", Success, head(200, length(k10-1)) + big[:k10-1]},
		{"10 KiB", Success, head(200, length(k10)) + big[:k10]},
		{"10 KiB + 1", Success, head(200, length(k10+1)) + big[:k10+1]},
		{"1 MiB", Success, head(200, length(1<<20)) + big},
		{"1 MiB with 500", Failure, head(500, length(1<<20)) + big},
		{"cut at once", Errored, head(200, length(100))},
		{"cut", Errored, head(200, length(100)) + "short"},
		{"cut by one byte", Errored, head(200, length(100)) + big[:99]},
		{"cut with 500", Errored, head(500, length(100)) + "short"},
		{"cut with 404", Errored, head(404, length(100)) + "short"},
		{"cut with 304", Warning, head(304, length(100))},
		{"cut with 204", Success, head(204, length(100))},
		{"cut far behind 10 KiB", Success, head(200, length(1<<20)) + big[:100<<10]},
		{"longer than it says", Success, head(200, length(2)) + "okay and more"},
		{"Content-Length of two", Failure, head(200, "Content-Length: 2\r\nContent-Length: 3\r\n") + "ok"},
		{"Content-Length twice the same", Success, head(200, "Content-Length: 2\r\nContent-Length: 2\r\n") + "ok"},
		{"Content-Length negative", Failure, head(200, "Content-Length: -1\r\n") + "ok"},
		{"Content-Length a word", Failure, head(200, "Content-Length: two\r\n") + "ok"},
		{"Content-Length with a plus", Failure, head(200, "Content-Length: +2\r\n") + "ok"},
		{"Content-Length empty", Failure, head(200, "Content-Length: \r\n")},
		{"Content-Length too large", Failure, head(200, "Content-Length: 99999999999999999999\r\n") + "ok"},
		{"Content-Length and chunks", Success, head(200, "Content-Length: 50\r\n"+chunked) + "2\r\nok\r\n0\r\n\r\n"},
		{"chunks", Success, head(200, chunked) + "2\r\nok\r\n3\r\nyes\r\n0\r\n\r\n"},
		{"chunks with a trailer", Success, head(200, chunked+"Trailer: X-T\r\n") + "2\r\nok\r\n0\r\nX-T: 1\r\n\r\n"},
		{"chunks with an extension", Success, head(200, chunked) + "2;a=b\r\nok\r\n0\r\n\r\n"},
		{"chunks of 1 MiB", Success, head(200, chunked) + "100000\r\n" + big + "\r\n0\r\n\r\n"},
		{"chunks, cut between", Errored, head(200, chunked) + "2\r\nok\r\n"},
		{"chunks, cut inside", Errored, head(200, chunked) + "20\r\nok"},
		{"chunks, the end cut", Errored, head(200, chunked) + "2\r\nok\r\n0\r\n"},
		{"chunks, cut before the first", Errored, head(200, chunked)},
		{"chunk of a wrong size", Errored, head(200, chunked) + "zz\r\nok\r\n0\r\n\r\n"},
		{"chunk longer than it says", Errored, head(200, chunked) + "2\r\nokay\r\n0\r\n\r\n"},
		{"chunk without CR", Errored, head(200, chunked) + "2\nok\r\n0\r\n\r\n"},
		{"chunk with an extension of 3 KB", Success, head(200, chunked) + "2;" + big[:3000] + "\r\nok\r\n0\r\n\r\n"},
		{"chunk with an extension of 5 KB", Errored, head(200, chunked) + "2;" + big[:5000] + "\r\nok\r\n0\r\n\r\n"},
		{
			"chunks with much else, little by little", Errored,
			head(200, chunked) + strings.Repeat("1;"+big[:100]+"\r\nx\r\n", 300) + "0\r\n\r\n",
		},
		{"chunks of one byte", Success, head(200, chunked) + strings.Repeat("1\r\nx\r\n", 5000) + "0\r\n\r\n"},
		{"chunks with a trailer of 3 KB", Success, head(200, chunked) + "2\r\nok\r\n0\r\nX: " + big[:3000] + "\r\n\r\n"},
		{"chunks with a trailer of 5 KB", Errored, head(200, chunked) + "2\r\nok\r\n0\r\nX: " + big[:5000] + "\r\n\r\n"},
		{"chunks with a wrong trailer", Errored, head(200, chunked) + "2\r\nok\r\n0\r\nwrong\r\n\r\n"},
		{"chunks with a trailer that is cut", Errored, head(200, chunked) + "2\r\nok\r\n0\r\nX: y\r\n"},
		{"cut at 10 KiB", Success, head(200, length(1<<20)) + big[:k10]},
		{"cut at 10 KiB - 1", Errored, head(200, length(1<<20)) + big[:k10-1]},
		{"Content-Length of 8 EiB, cut", Errored, head(200, "Content-Length: 9223372036854775807\r\n") + "ok"},
		{"Content-Length in a list", Failure, head(200, "Content-Length: 2, 2\r\n") + "ok"},
		{"Content-Length in hexadecimal", Failure, head(200, "Content-Length: 0x2\r\n") + "ok"},
		{"Content-Length on a line of its own", Success, head(200, "Content-Length:\r\n 2\r\n") + "ok"},
		{"Content-Length wrong, and chunks", Failure, head(200, "Content-Length: x\r\n"+chunked) + "0\r\n\r\n"},
		{"Transfer-Encoding twice", Failure, head(200, chunked+chunked) + "0\r\n\r\n"},
		{"Transfer-Encoding empty", Failure, head(200, "Transfer-Encoding: \r\n"+length(2)) + "ok"},
		{"chunk of a huge size", Errored, head(200, chunked) + "fffffffffffffffff\r\nok\r\n"},
		{"Transfer-Encoding gzip", Failure, head(200, "Transfer-Encoding: gzip\r\n") + "ok"},
		{"Transfer-Encoding gzip, chunked", Failure, head(200, "Transfer-Encoding: gzip, chunked\r\n") + "0\r\n\r\n"},
		{"Transfer-Encoding identity", Failure, head(200, "Transfer-Encoding: identity\r\n"+length(2)) + "ok"},
		{"gzip that lies", Success, head(200, "Content-Encoding: gzip\r\n"+length(2)) + "ok"},
		{"gzip that does not", Success, head(200, "Content-Encoding: gzip\r\n"+length(len(zipped("ok")))) + zipped("ok")},
		{"gzip that is cut", Success, head(200, "Content-Encoding: gzip\r\n"+length(5)) + zipped("ok")[:5]},
		{"br", Success, head(200, "Content-Encoding: br\r\n"+length(2)) + "ok"},
		{"of HTTP/1.0", Success, "HTTP/1.0 200 OK\r\n\r\nok"},
		{"of HTTP/1.0 with a length", Success, "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok"},
		{"of HTTP/1.0, cut", Errored, "HTTP/1.0 200 OK\r\nContent-Length: 20\r\n\r\nok"},
		{"of HTTP/1.0 in chunks", Success, "HTTP/1.0 200 OK\r\n" + chunked + "\r\n2\r\nok\r\n0\r\n\r\n"},
		{"with 204", Success, head(204, "") + "ok"},
		{"HTML", Success, head(200, "Content-Type: text/html\r\n"+length(15)) + "<html>ok</html>"},
		{"of each byte", Success, head(200, length(256)) + everyByte()},
	}
	cut := says(head(200, length(100)) + "short")
	rows := []row{
		{"cut twice, then whole", Success, inTurn(cut, cut, ok)},
		{"cut twice, then 503", Failure, inTurn(cut, cut, reply(503, "no"))},
	}
	for _, c := range texts {
		rows = append(rows, row{c.name, c.want, says(c.text)})
	}
	return append(answers("body ", rows), Case{
		Name: "body reset", Want: Verdicts{Errored}, timing: true, // a reset discards what has not been read
		servers: http1(steps(send(head(200, length(100))+"short"), pause(0.2), resets)),
	})
}

func zipped(text string) string {
	var b bytes.Buffer
	w := gzip.NewWriter(&b)
	_, _ = w.Write([]byte(text)) // a write to memory does not fail
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

// brokenServers do not speak correct HTTP.
func brokenServers() []Case {
	manyHeaders := func(n, size int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "X-%d: %s\r\n", i, strings.Repeat("x", size))
		}
		return b.String()
	}
	const end = "Content-Length: 0\r\n\r\n"
	texts := []struct {
		name string
		want Verdict
		text string
	}{
		{"nothing and closes", Failure, ""},
		{"one byte", Failure, "H"},
		{"half a status line", Failure, "HTTP/1.1 200"},
		{"a status line alone", Failure, "HTTP/1.1 200 OK\r\n"},
		{"half the headers", Failure, "HTTP/1.1 200 OK\r\nX-A: b\r\n"},
		{"garbage", Failure, "\x00\x01\x02\x03garbage\r\n\r\n"},
		{"HTTP/0.9", Failure, "<html>old</html>\n"},
		{"SSH", Failure, "SSH-2.0-OpenSSH_9\r\n"},
		{"SMTP", Failure, "220 mail.example ESMTP\r\n"},
		{"TLS", Failure, "\x15\x03\x01\x00\x02\x02\x28"},
		{"HTTP/2", Failure, "\x00\x00\x00\x04\x00\x00\x00\x00\x00"},
		{"an empty line before", Failure, "\r\nHTTP/1.1 200 OK\r\n" + end},
		{"lines with LF alone", Success, "HTTP/1.1 200 OK\nContent-Length: 0\n\n"},
		{"a header without colon", Failure, "HTTP/1.1 200 OK\r\nX-A\r\n" + end},
		{"a header with a space", Success, "HTTP/1.1 200 OK\r\nX A: b\r\n" + end},
		{"a header of an empty name", Failure, "HTTP/1.1 200 OK\r\n: b\r\n" + end},
		{"a header with NUL", Failure, "HTTP/1.1 200 OK\r\nX-A: a\x00b\r\n" + end},
		{"a header with CR", Failure, "HTTP/1.1 200 OK\r\nX-A: a\rb\r\n" + end},
		{"a header in quotes", Failure, "HTTP/1.1 200 OK\r\n\"X-A\": b\r\n" + end},
		{"a space before the colon", Success, "HTTP/1.1 200 OK\r\nX-A : b\r\n" + end},
		{"CR twice", Success, "HTTP/1.1 200 OK\r\r\n" + end},
		{"a byte order mark", Failure, "\ufeffHTTP/1.1 200 OK\r\n" + end},
		{"a status line of 1 MiB", Success, "HTTP/1.1 200 " + strings.Repeat("x", 1<<20) + "\r\n" + end},
		{"408 without a request", Failure, "HTTP/1.1 408 Request Timeout\r\nConnection: close\r\n\r\n"},
		{"200 with an upgrade", Success, "HTTP/1.1 200 OK\r\nConnection: upgrade\r\nUpgrade: h2c\r\n" + end},
		{"a header of odd bytes", Failure, "HTTP/1.1 200 OK\r\nX-A: \x01\xff\r\n" + end},
		{"a folded header", Success, "HTTP/1.1 200 OK\r\nX-A: a\r\n b\r\n" + end},
		{"a header that begins with a space", Failure, "HTTP/1.1 200 OK\r\n X-A: a\r\n" + end},
		{"101 headers", Success, "HTTP/1.1 200 OK\r\n" + manyHeaders(101, 1) + end},
		{"5,000 headers", Success, "HTTP/1.1 200 OK\r\n" + manyHeaders(5000, 1) + end},
		{"a header of 70 KB", Success, "HTTP/1.1 200 OK\r\n" + manyHeaders(1, 70000) + end},
		{"a header of 2 MiB", Success, "HTTP/1.1 200 OK\r\n" + manyHeaders(1, 2<<20) + end},
		{"a header of 11 MiB", Failure, "HTTP/1.1 200 OK\r\n" + manyHeaders(1, 11<<20) + end},
		{"Sonde-Probe", Success, "HTTP/1.1 200 OK\r\nSonde-Probe: x\r\nLocation: http://elsewhere.example/\r\n" + end},
		{"two answers", Success, "HTTP/1.1 200 OK\r\n" + end + "HTTP/1.1 500 No\r\n" + end},
		{"Connection: keep-alive and closes", Success, "HTTP/1.1 200 OK\r\nConnection: keep-alive\r\n" + end},
	}
	var rows []row
	for _, c := range texts {
		rows = append(rows, row{"says " + c.name, c.want, says(c.text)})
	}
	const whole = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
	rows = append(rows, []row{
		{"resets after the request", Failure, resets},
		{"keeps the connection open", Success, steps(send(whole), hangs)},
		{"ends its half of the connection after an answer", Success, steps(send("HTTP/1.1 200 OK\r\n\r\nok"), drains)},
		{"ends its half of the connection instead of an answer", Failure, drains},
		{"answers slowly, byte by byte", Success, steps(func(x *exchange) { x.slowly(whole, 0) }, closes)},
	}...)
	afterFirstLine := func(x *exchange) {
		x.buffer()
		_, _ = x.read.ReadString('\n') // an error returns with the next read
		x.raw(whole)
		x.hang()
	}
	resetsAfter := func(text string) servers { return http1(steps(send(text), pause(0.2), resets)) }
	return append(answers("server ", rows), []Case{
		{Name: "server resets within the headers", Want: Verdicts{Failure}, timing: true, servers: resetsAfter("HTTP/1.1 200 OK\r\n")},
		{Name: "server resets after a whole answer", Want: Verdicts{Success}, timing: true, servers: resetsAfter(whole)},
		{Name: "server closes at once", Want: Verdicts{Failure}, servers: raw(closes)},
		{Name: "server resets at once", Want: Verdicts{Failure}, servers: raw(resets)},
		{Name: "server answers 200 after the first line of the request", Want: Verdicts{Success}, servers: raw(afterFirstLine)},
		{Name: "server is not there", Want: Verdicts{Failure}, servers: nothing, Process: true},
	}...)
}
