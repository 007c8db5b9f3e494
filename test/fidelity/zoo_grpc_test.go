package fidelity_test

import (
	"crypto/tls"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// grpcIn adds a gRPC probe of a server that answers so.
func (z *zoo) grpcIn(name string, want kubelet.Verdict, answer func(*exchange2)) {
	n := len(*z)
	z.add(scenario{
		name: "gRPC " + name, want: []kubelet.Verdict{want}, process: n%15 == 0,
		containers: one(n, patience, func(p place) corev1.ProbeHandler { return grpcHealth(p, "liveness") }),
		sites:      func(p place) []site { return []site{{port: p.app, answer2: answer}} },
	})
}

// grpcs is a gRPC probe of each kind of server.
func grpcs() (z zoo) {
	for status, name := range []string{"UNKNOWN", "SERVING", "NOT_SERVING", "SERVICE_UNKNOWN", "of no name"} {
		want := failure
		if status == 1 {
			want = success
		}
		z.grpcIn(fmt.Sprintf("status %d, %s", status, name), want, health(byte(status)))
	}
	for code := range 18 {
		if code > 0 {
			z.grpcIn(fmt.Sprint("code ", code), failure, grpcCode(strconv.Itoa(code), "a reason"))
		}
	}
	z.grpcIn("code 0 without a message", failure, grpcCode("0", ""))
	z.grpcIn("code that is no number", failure, grpcCode("abc", ""))
	z.grpcIn("code with an odd text", failure, grpcCode("14", "%zz%C3%A4 \"x\""))
	z.grpcIn("code after SERVING", failure, func(y *exchange2) {
		y.answerGRPC()
		y.data(false, message(healthStatus(1)))
		y.headers(true, "grpc-status", "13", "grpc-message", "late")
	})
	z.grpcIn("no trailers", failure, func(y *exchange2) {
		y.answerGRPC()
		y.data(true, message(healthStatus(1)))
	})
	z.grpcIn("no message", failure, func(y *exchange2) {
		y.answerGRPC()
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("two messages", failure, func(y *exchange2) {
		y.answerGRPC()
		y.data(false, append(message(healthStatus(1)), message(healthStatus(1))...))
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("message that is no protobuf", failure, func(y *exchange2) {
		y.answerGRPC()
		y.data(false, message([]byte{8, 0xff}))
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("message with unknown fields", success, func(y *exchange2) {
		y.answerGRPC()
		y.data(false, message([]byte{8, 1, 0x98, 0x06, 1}))
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("message in two parts", success, func(y *exchange2) {
		y.answerGRPC()
		m := message(healthStatus(1))
		y.data(false, m[:3])
		y.data(false, m[3:])
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("message that is too large", failure, func(y *exchange2) {
		y.answerGRPC()
		y.data(false, []byte{0, 0x7f, 0, 0, 0})
	})
	z.grpcIn("message that is compressed", failure, func(y *exchange2) {
		y.headers(false, ":status", "200", "content-type", "application/grpc", "grpc-encoding", "snappy")
		y.data(false, []byte{1, 0, 0, 0, 2, 8, 1})
		y.headers(true, "grpc-status", "0")
	})
	for _, code := range []int{200, 204, 302, 400, 401, 403, 404, 429, 502, 503, 504} {
		z.grpcIn(fmt.Sprintf("HTTP status %d, no gRPC", code), failure, func(y *exchange2) { y.reply2(code, "text", "content-type", "text/plain") })
	}
	z.grpcIn("content type application/grpc+proto", success, func(y *exchange2) {
		y.headers(false, ":status", "200", "content-type", "application/grpc+proto")
		y.data(false, message(healthStatus(1)))
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("content type absent", failure, func(y *exchange2) {
		y.headers(false, ":status", "200")
		y.data(false, message(healthStatus(1)))
		y.headers(true, "grpc-status", "0")
	})
	z.grpcIn("RST_STREAM", failure, func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, 2) })
	z.grpcIn("RST_STREAM after SERVING", failure, func(y *exchange2) {
		y.answerGRPC()
		y.data(false, message(healthStatus(1)))
		_ = y.framer.WriteRSTStream(y.stream, 2)
	})
	z.grpcIn("REFUSED_STREAM once", success, func(y *exchange2) {
		if y.n == 1 {
			_ = y.framer.WriteRSTStream(y.stream, 7)
			return
		}
		health(1)(y)
	})
	z.grpcIn("REFUSED_STREAM always", failure, func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, 7) })
	z.grpcIn("connection closed", failure, func(y *exchange2) { y.close() })
	z.grpcIn("connection reset", failure, func(y *exchange2) { y.reset() })
	z.grpcIn("connection cut after the headers", failure, func(y *exchange2) {
		y.answerGRPC()
		y.close()
	})
	z.grpcIn("GOAWAY after the answer", success, func(y *exchange2) {
		health(1)(y)
		_ = y.framer.WriteGoAway(y.stream, 0, nil)
	})
	return slices.Concat(z, grpcAnswers(), grpcFrames(), grpcTimes(), grpcNames(), grpcServers())
}

// grpcTimes are servers that take their time.
func grpcTimes() (z zoo) {
	add := func(name string, timeout int32, want kubelet.Verdict, s func(place) site) {
		n := len(z)
		z.add(scenario{
			name: "gRPC " + name, want: []kubelet.Verdict{want}, timing: true, apart: true, process: n%4 == 0,
			containers: one(n, timeout, func(p place) corev1.ProbeHandler { return grpcHealth(p, "") }),
			sites:      func(p place) []site { return []site{s(p)} },
		})
	}
	slow := func(s float64) func(place) site {
		return func(p place) site {
			return site{port: p.app, answer2: func(y *exchange2) {
				if y.wait(seconds(s)) {
					health(1)(y)
				}
			}}
		}
	}
	late := func(s float64) func(place) site {
		return func(p place) site { return site{port: p.app, late: seconds(s), answer2: health(1)} }
	}
	add("answer at 1.4 s of 2", 2, success, slow(1.4))
	add("answer at 2.4 s of 2", 2, failure, slow(2.4))
	add("answer never", 1, failure, func(p place) site {
		return site{port: p.app, answer2: func(y *exchange2) { y.hang() }}
	})
	add("listens at 1.5 s of 4", 4, success, late(1.5))
	add("listens at 0.5 s of 3", 3, success, late(0.5))
	add("listens at 2.5 s of 2", 2, failure, late(2.5))
	add("listens at 0.8 s, answers never, of 2", 2, failure, func(p place) site {
		return site{port: p.app, late: seconds(0.8), answer2: func(y *exchange2) { y.hang() }}
	})
	add("never listens", 1, failure, late(3600))
	add("headers and never the rest", 1, failure, func(p place) site {
		return site{port: p.app, answer2: func(y *exchange2) {
			y.answerGRPC()
			y.hang()
		}}
	})
	add("two connections closed, then good, of 5", 5, success, func(p place) site {
		return site{port: p.app, unready: 2, answer2: health(1)}
	})
	return z
}

// grpcNames are odd names of services.
func grpcNames() (z zoo) {
	for _, name := range []string{
		"", "liveness", "a.b.C", "a/b", "/", "/a", "a/", "//", "a b", " ", "ä", "日本 😀", "a%2Fb", "%", "%zz", "a?b=c", "?", "#", "a#b",
		"$", "$$", "$(INSTANCE_IP)", "$$(INSTANCE_IP)", `"`, `\`, `"}],`, "a\nb", "\x00", "\x7f", "a\tb", "..", "../..", ".", "a;b", "a+b", "<&>", "*",
		strings.Repeat("n", 5000), strings.Repeat("ä", 30000), "\u0085\u2028\ufeff", "\ufffd", "a\r\nb: c", "a//b/../c", "%2F", "+",
	} {
		n := len(z)
		z.add(scenario{
			name: "gRPC service " + quoted(name), want: []kubelet.Verdict{success}, process: n%8 == 2,
			containers: one(n, patience, func(p place) corev1.ProbeHandler { return grpcHealth(p, name) }),
			sites: func(p place) []site {
				return []site{{port: p.app, answer2: func(y *exchange2) {
					if strings.HasSuffix(string(y.body), name) {
						health(1)(y)
						return
					}
					grpcCode("5", "unknown service")(y)
				}}}
			},
		})
	}
	z.add(scenario{
		name: "gRPC service absent", want: []kubelet.Verdict{success},
		containers: one(0, patience, func(p place) corev1.ProbeHandler {
			return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.app)}}
		}),
		sites: func(p place) []site { return []site{{port: p.app, answer2: health(1)}} },
	})
	return z
}

// grpcServers are no servers of gRPC.
func grpcServers() (z zoo) {
	add := func(name string, s func(place) []site) {
		n := len(z)
		z.add(scenario{
			name: "gRPC to " + name, want: []kubelet.Verdict{failure}, timing: true, apart: true,
			containers: one(n, 1, func(p place) corev1.ProbeHandler { return grpcHealth(p, "") }), sites: s,
		})
	}
	connection := func(f func(*exchange)) func(place) []site {
		return func(p place) []site { return []site{{port: p.app, connection: f}} }
	}
	add("a closed port", func(place) []site { return nil })
	add("a server of HTTP/1", plain)
	add("a server of TLS", func(p place) []site { return []site{{port: p.app, tls: serverTLS(), answer: ok}} })
	add("a server of gRPC with TLS", func(p place) []site {
		return []site{{port: p.app, tls: &tls.Config{Certificates: certificates().valid, NextProtos: []string{"h2"}}, answer2: health(1)}}
	})
	add("a server that closes at once", connection((*exchange).close))
	add("a server that resets at once", connection((*exchange).reset))
	add("a server that says nothing", connection((*exchange).hang))
	add("a server that says garbage", connection(func(x *exchange) {
		x.raw(strings.Repeat("garbage ", 10))
		x.hang()
	}))
	return z
}

// serverTLS is a server's, which takes these protocols.
func serverTLS(protocols ...string) *tls.Config {
	return &tls.Config{Certificates: certificates().valid, NextProtos: protocols}
}
