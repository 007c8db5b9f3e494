package fidelity_test

import (
	"io"
	"strings"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// http2Answers are answers over HTTP/2 with something odd in headers or body.
func http2Answers() (z zoo) {
	add := func(name string, timeout int32, want kubelet.Verdict, answer func(*exchange2)) {
		n := len(z)
		z.add(scenario{
			name: "HTTP/2 " + name, want: []kubelet.Verdict{want}, timing: timeout < patience, process: n%12 == 0,
			containers: one(n, timeout, func(p place) corev1.ProbeHandler { return getTLS(p, "/probe") }),
			sites:      func(p place) []site { return []site{{port: p.app, tls: serverTLS("h2"), answer2: answer}} },
		})
	}
	for _, c := range []struct {
		name    string
		want    kubelet.Verdict
		headers []string // after which the stream ends
	}{
		{"status 099", failure, []string{":status", "099"}},
		{"status 1000", failure, []string{":status", "1000"}},
		{"status 20", failure, []string{":status", "20"}},
		{"status -1", failure, []string{":status", "-1"}},
		{"status 600", failure, []string{":status", "600"}},
		{"status 999", failure, []string{":status", "999"}},
		{"status 421", failure, []string{":status", "421"}},
		{"status 100 alone", failure, []string{":status", "100"}},
		{"two statuses", failure, []string{":status", "200", ":status", "500"}},
		{"a status behind a header", failure, []string{"x-a", "b", ":status", "200"}},
		{"a path in the answer", failure, []string{":status", "200", ":path", "/"}},
		{"a header with a newline", failure, []string{":status", "200", "x-a", "a\nb"}},
		{"a header without a name", failure, []string{":status", "200", "", "a"}},
		{"transfer-encoding", success, []string{":status", "200", "transfer-encoding", "chunked"}},
		{"a length and no body", errored, []string{":status", "200", "content-length", "10"}},
		{"304 with a length", errored, []string{":status", "304", "content-length", "10"}},
	} {
		add(c.name, patience, c.want, func(y *exchange2) { y.headers(true, c.headers...) })
	}
	begun := func(rest func(*exchange2), headers ...string) func(*exchange2) {
		return func(y *exchange2) {
			y.headers(false, append([]string{":status", "200"}, headers...)...)
			rest(y)
		}
	}
	add("100 times 103", patience, success, func(y *exchange2) {
		for range 100 {
			y.headers(false, ":status", "103")
		}
		y.reply2(200, "ok")
	})
	add("204 with a body", patience, success, func(y *exchange2) { y.reply2(204, "ok") })
	add("304 with a body", patience, warning, func(y *exchange2) { y.reply2(304, "ok") })
	add("body longer than its length", patience, errored, func(y *exchange2) { y.reply2(200, "okay", "content-length", "2") })
	add("content-length that is none", patience, success, func(y *exchange2) { y.reply2(200, "ok", "content-length", "x") })
	add("two lengths", patience, success, func(y *exchange2) { y.reply2(200, "ok", "content-length", "2", "content-length", "3") })
	add("body before the headers", patience, failure, func(y *exchange2) {
		y.data(false, []byte("ok"))
		y.reply2(200, "ok")
	})
	add("body with padding", patience, success, begun(func(y *exchange2) { _ = y.framer.WriteDataPadded(y.stream, true, []byte("ok"), make([]byte, 200)) }))
	add("1,000 empty parts of a body", patience, success, begun(func(y *exchange2) {
		for range 1000 {
			y.data(false, nil)
		}
		y.data(true, []byte("ok"))
	}))
	add("body of 1 MiB", patience, success, begun(func(y *exchange2) {
		for range 64 {
			y.data(false, make([]byte, 16<<10))
		}
		y.data(true, nil)
	}))
	add("body in too large a frame", patience, errored, begun(func(y *exchange2) { y.data(true, make([]byte, 1<<16)) }))
	add("trailers with a status", patience, errored, begun(func(y *exchange2) {
		y.data(false, []byte("ok"))
		y.headers(true, ":status", "200")
	}))
	for _, code := range []http2.ErrCode{http2.ErrCodeNo, http2.ErrCodeCancel, http2.ErrCodeHTTP11Required} {
		add("RST_STREAM "+code.String(), patience, failure, func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, code) })
		add("RST_STREAM "+code.String()+" after the headers", patience, errored, begun(func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, code) }))
	}
	add("closed after the headers", patience, errored, begun((*exchange2).close))
	add("closed within the body, with 500", patience, errored, func(y *exchange2) {
		y.headers(false, ":status", "500", "content-length", "9")
		y.data(false, []byte("ok"))
		y.close()
	})
	add("an answer of HTTP/1", patience, failure, func(y *exchange2) {
		y.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
		y.close()
	})
	add("redirect whose body is cut", patience, success, func(y *exchange2) {
		if y.target == "/new" {
			y.reply2(200, "ok")
			return
		}
		y.headers(false, ":status", "302", "location", "/new")
		_ = y.framer.WriteRSTStream(y.stream, http2.ErrCodeInternal)
	})
	add("body never ends", 1, errored, begun(func(y *exchange2) {
		y.data(false, []byte("ok"))
		y.hang()
	}))
	add("10 KiB and then never the rest", 1, success, begun(func(y *exchange2) {
		y.data(false, make([]byte, 10<<10))
		y.hang()
	}))
	add("no answer", 1, failure, func(y *exchange2) { y.hang() })
	return z
}

// handshakes are answers to a ClientHello.
func handshakes() (z zoo) {
	for name, text := range sorted(map[string]string{
		"handshake_failure": "\x15\x03\x03\x00\x02\x02\x28", "a warning": "\x15\x03\x03\x00\x02\x01\x70", "close_notify": "\x15\x03\x03\x00\x02\x01\x00",
		"no_application_protocol": "\x15\x03\x03\x00\x02\x02\x78", "an alert of TLS 1.0": "\x15\x03\x01\x00\x02\x02\x46", "data": "\x17\x03\x03\x00\x02ok",
		"a record too long": "\x16\x03\x03\xff\xff" + strings.Repeat("x", 70000), "40 empty records": strings.Repeat("\x16\x03\x03\x00\x00", 40),
		"half a record": "\x16\x03\x03\x00\x50abc", "HTTP/1.0 200": "HTTP/1.0 200 OK\r\n\r\nok", "half of HTTP": "HTTP", "SSH": "SSH-2.0-x\r\n", "nothing": "",
	}) {
		n := len(z)
		z.add(scenario{
			name: "TLS ClientHello answered with " + name, want: []kubelet.Verdict{failure}, process: n%10 == 0,
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return getTLS(p, "/probe") }),
			sites: func(p place) []site {
				return []site{{port: p.app, connection: func(x *exchange) {
					record := make([]byte, 5)
					if _, err := io.ReadFull(x.conn, record); err != nil {
						return
					}
					_, _ = io.CopyN(io.Discard, x.conn, int64(record[3])<<8|int64(record[4])) // its end shows in what follows
					x.raw(text)
					x.drain()
				}}}
			},
		})
	}
	return z
}
