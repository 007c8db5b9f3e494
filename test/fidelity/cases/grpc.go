package cases

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"
)

// grpcs is a gRPC probe of each kind of server.
func grpcs() []Case {
	var all []Case
	for _, r := range slices.Concat(grpcStatuses(), grpcMessages(), grpcTrailers(), grpcTypes(), grpcEnds()) {
		all = append(all, Case{Name: "gRPC " + r.name, Want: Verdicts{r.want}, probe: grpcHealth("liveness"), servers: http2c(r.answer)})
	}
	return slices.Concat(all, grpcFrames(), grpcTimeouts(), grpcServices(), grpcServers())
}

// grpcStatuses are statuses of health checks, gRPC and HTTP.
func grpcStatuses() []row2 {
	rows := []row2{
		{"status 0, UNKNOWN", Failure, health(0)},
		{"status 1, SERVING", Success, health(1)},
		{"status 2, NOT_SERVING", Failure, health(2)},
		{"status 3, SERVICE_UNKNOWN", Failure, health(3)},
		{"status 4, of no name", Failure, health(4)},
		{"code 0 without a message", Failure, grpcCode("0", "")},
		{"code that is no number", Failure, grpcCode("abc", "")},
		{"code with an odd text", Failure, grpcCode("14", "%zz%C3%A4 \"x\"")},
		{"UNAVAILABLE once", Failure, inTurn2(grpcCode("14", "a reason"), health(1))},
	}
	for code := 1; code < 18; code++ {
		rows = append(rows, row2{fmt.Sprint("code ", code), Failure, grpcCode(strconv.Itoa(code), "a reason")})
	}
	for _, code := range []int{200, 204, 302, 400, 401, 403, 404, 429, 502, 503, 504} {
		rows = append(rows, row2{
			fmt.Sprintf("HTTP status %d, no gRPC", code), Failure, reply2(code, "text", "content-type", "text/plain"),
		})
	}
	return rows
}

// grpcMessages are answers with an unusual message.
func grpcMessages() []row2 {
	serving := message(healthStatus(1))
	bytes := func(b ...byte) func(*exchange2) { return grpcData(message(b)) }
	return []row2{
		{"no message", Failure, steps2(beginGRPC, end("grpc-status", "0"))},
		{"two messages", Failure, grpcData(append(message(healthStatus(1)), serving...))},
		{"message that is no protobuf", Failure, bytes(8, 0xff)},
		{"message with unknown fields", Success, bytes(8, 1, 0x98, 0x06, 1)},
		{"message in two parts", Success, steps2(beginGRPC, data(string(serving[:3])), data(string(serving[3:])), end("grpc-status", "0"))},
		{"message that is too large", Failure, steps2(beginGRPC, data("\x00\x7f\x00\x00\x00"))},
		{"message that is compressed", Failure, steps2(
			headers2(":status", "200", "content-type", "application/grpc", "grpc-encoding", "snappy"),
			data("\x01\x00\x00\x00\x02\x08\x01"), end("grpc-status", "0"))},
		{"status 100", Failure, bytes(8, 100)},
		{"status -1", Failure, bytes(8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1)},
		{"status 2^32 + 1", Success, bytes(8, 0x81, 0x80, 0x80, 0x80, 0x10)},
		{"two statuses, the last SERVING", Success, bytes(8, 2, 8, 1)},
		{"two statuses, the first SERVING", Failure, bytes(8, 1, 8, 2)},
		{"status of another type", Failure, bytes(13, 1, 0, 0, 0)},
		{"field 0", Failure, bytes(0, 1)},
		{"message that says it is compressed", Failure, grpcData(append([]byte{1}, serving[1:]...))},
		{"message with an odd flag", Failure, grpcData(append([]byte{2}, serving[1:]...))},
		{"message longer than it says", Failure, grpcData([]byte{0, 0, 0, 0, 1, 8, 1})},
		{"message shorter than it says", Failure, grpcData([]byte{0, 0, 0, 0, 9, 8, 1})},
		{"half a prefix", Failure, grpcData([]byte{0, 0, 0})},
	}
}

// serving answers SERVING, with these headers before and these trailers after it.
func serving(headers, trailers []string) func(*exchange2) {
	return steps2(headers2(headers...), data(string(message(healthStatus(1)))), end(trailers...))
}

// grpcTrailers are answers with unusual trailers.
func grpcTrailers() []row2 {
	trailers := func(pairs ...string) func(*exchange2) {
		return serving([]string{":status", "200", "content-type", "application/grpc"}, pairs)
	}
	return []row2{
		{"code after SERVING", Failure, trailers("grpc-status", "13", "grpc-message", "late")},
		{"no trailers", Failure, steps2(beginGRPC, lastData(string(message(healthStatus(1)))))},
		{`trailer grpc-status ""`, Failure, trailers("grpc-status", "")},
		{`trailer grpc-status "+0"`, Success, trailers("grpc-status", "+0")},
		{`trailer grpc-status "-1"`, Failure, trailers("grpc-status", "-1")},
		{`trailer grpc-status "00"`, Success, trailers("grpc-status", "00")},
		{`trailer grpc-status "0x0"`, Failure, trailers("grpc-status", "0x0")},
		{`trailer grpc-status "18"`, Failure, trailers("grpc-status", "18")},
		{`trailer grpc-status "4294967296"`, Failure, trailers("grpc-status", "4294967296")},
		{`trailer grpc-status "99999999999999999999"`, Failure, trailers("grpc-status", "99999999999999999999")},
		{"trailers with grpc-status 0 and 5", Failure, trailers("grpc-status", "0", "grpc-status", "5")},
		{"trailers with grpc-status 5 and 0", Success, trailers("grpc-status", "5", "grpc-status", "0")},
		{"trailers with no grpc-status", Failure, trailers("x-t", "1")},
		{"trailers with bad details", Failure, trailers("grpc-status", "0", "grpc-status-details-bin", "!!!")},
		{"trailers with a bad binary value", Failure, trailers("grpc-status", "0", "x-bin", "!!!")},
		{"trailers with 15 KB", Success, trailers("grpc-status", "0", "x-t", strings.Repeat("x", 15000))},
	}
}

// grpcTypes are answers with unusual headers.
func grpcTypes() []row2 {
	headers := func(pairs ...string) func(*exchange2) { return serving(pairs, []string{"grpc-status", "0"}) }
	contentType := func(text string) func(*exchange2) { return headers(":status", "200", "content-type", text) }
	status := func(text string, more ...string) func(*exchange2) {
		return headers(append([]string{":status", text, "content-type", "application/grpc"}, more...)...)
	}
	return []row2{
		{"content type application/grpc+proto", Success, contentType("application/grpc+proto")},
		{"content type absent", Failure, headers(":status", "200")},
		{`content type ""`, Failure, contentType("")},
		{`content type "APPLICATION/GRPC"`, Failure, contentType("APPLICATION/GRPC")},
		{`content type "application/grpc+"`, Success, contentType("application/grpc+")},
		{`content type "application/grpc-web"`, Failure, contentType("application/grpc-web")},
		{`content type "application/grpc;"`, Success, contentType("application/grpc;")},
		{`content type "application/grpc; charset=utf-8"`, Success, contentType("application/grpc; charset=utf-8")},
		{`content type "application/grpcx"`, Failure, contentType("application/grpcx")},
		{`content type "application/json"`, Failure, contentType("application/json")},
		{"HTTP status 404, and gRPC", Success, status("404")},
		{"HTTP status 503, and gRPC", Success, status("503")},
		{"HTTP status 099, and gRPC", Success, status("099")},
		{"HTTP status abc, and gRPC", Success, status("abc")},
		{"HTTP status 103 before", Success, steps2(headers2(":status", "103"), health(1))},
		{"grpc-status 5 before the message", Success, status("200", "grpc-status", "5")},
		{"encoding gzip, which is not used", Success, status("200", "grpc-encoding", "gzip")},
	}
}

// grpcEnds end the stream or the connection.
func grpcEnds() []row2 {
	goAway := func(y *exchange2) { _ = y.framer.WriteGoAway(y.stream, 0, nil) }
	rows := []row2{
		{"RST_STREAM after SERVING", Failure, steps2(beginGRPC, data(string(message(healthStatus(1)))), resetStream(http2.ErrCodeInternal))},
		{"REFUSED_STREAM once", Success, inTurn2(resetStream(http2.ErrCodeRefusedStream), health(1))},
		{"REFUSED_STREAM always", Failure, resetStream(http2.ErrCodeRefusedStream)},
		{"connection closed", Failure, closes2},
		{"connection reset", Failure, func(y *exchange2) { y.reset() }},
		{"connection cut after the headers", Failure, steps2(beginGRPC, closes2)},
		{"GOAWAY after the answer", Success, steps2(health(1), goAway)},
	}
	for _, code := range []http2.ErrCode{
		http2.ErrCodeInternal, http2.ErrCodeNo, http2.ErrCodeFlowControl, http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm,
		http2.ErrCodeHTTP11Required,
	} {
		rows = append(rows, row2{"RST_STREAM " + code.String(), Failure, resetStream(code)})
	}
	return rows
}

// grpcTimeouts are servers that answer slowly.
func grpcTimeouts() []Case {
	slow := func(s float64) server {
		return server{answer2: func(y *exchange2) {
			if y.wait(seconds(s)) {
				health(1)(y)
			}
		}}
	}
	late := func(s float64, answer func(*exchange2)) server { return server{late: seconds(s), answer2: answer} }
	var all []Case
	for _, r := range []struct {
		name    string
		timeout int32
		want    Verdict
		since38 Verdict // since 1.38 the first failed connection is a failure
		server  server
	}{
		{"answer at 1.4 s of 2", 2, Success, Success, slow(1.4)},
		{"answer at 2.4 s of 2", 2, Failure, Failure, slow(2.4)},
		{"answer never", 1, Failure, Failure, server{answer2: hangs2}},
		{"listens at 1.5 s of 4", 4, Success, Failure, late(1.5, health(1))},
		{"listens at 0.5 s of 3", 3, Success, Failure, late(0.5, health(1))},
		{"listens at 2.5 s of 2", 2, Failure, Failure, late(2.5, health(1))},
		{"listens at 0.8 s, answers never, of 2", 2, Failure, Failure, late(0.8, hangs2)},
		{"never listens", 1, Failure, Failure, late(3600, health(1))},
		{"headers and never the rest", 1, Failure, Failure, server{answer2: steps2(beginGRPC, hangs2)}},
		{"two connections closed, then good, of 5", 5, Success, Failure, server{unready: 2, answer2: health(1)}},
	} {
		all = append(all, Case{
			Name: "gRPC " + r.name, Want: Verdicts{r.want}, Since38: Verdicts{r.since38}, timeout: r.timeout, LastRequest: true, probe: grpcHealth(""), servers: app(r.server),
		})
	}
	return all
}

// grpcServices are unusual service names.
func grpcServices() []Case {
	all := []Case{{
		Name: "gRPC service absent", Want: Verdicts{Success}, servers: http2c(health(1)),
		probe: func(p PodAddress) corev1.ProbeHandler {
			return corev1.ProbeHandler{GRPC: &corev1.GRPCAction{Port: int32(p.App)}}
		},
	}}
	for _, name := range []string{
		"", "liveness", "a.b.C", "a/b", "/", "/a", "a/", "//", "a b", " ", "ä", "日本 😀", "a%2Fb", "%", "%zz", "a?b=c", "?",
		"#", "a#b", "$", "$$", "$(INSTANCE_IP)", "$$(INSTANCE_IP)", `"`, `\`, `"}],`, "a\nb", "\x00", "\x7f", "a\tb", "..",
		"../..", ".", "a;b", "a+b", "<&>", "*", strings.Repeat("n", 5000), strings.Repeat("ä", 30000), "\u0085\u2028\ufeff",
		"\ufffd", "a\r\nb: c", "a//b/../c", "%2F", "+",
	} {
		all = append(all, Case{
			Name: "gRPC service " + quoted(name), Want: Verdicts{Success}, probe: grpcHealth(name),
			servers: http2c(func(y *exchange2) {
				if strings.HasSuffix(string(y.body), name) {
					health(1)(y)
					return
				}
				grpcCode("5", "unknown service")(y)
			}),
		})
	}
	return all
}

// grpcServers are servers that do not speak gRPC.
func grpcServers() []Case {
	var all []Case
	for _, r := range []struct {
		name    string
		servers servers
	}{
		{"a closed port", nothing},
		{"a server of HTTP/1", http1(ok)},
		{"a server of TLS", https(ok)},
		{"a server of gRPC with TLS", http2s(health(1))},
		{"a server that closes at once", raw(closes)},
		{"a server that resets at once", raw(resets)},
		{"a server that says nothing", raw(hangs)},
		{"a server that says garbage", raw(steps(send(strings.Repeat("garbage ", 10)), hangs))},
	} {
		all = append(all, Case{
			Name: "gRPC to " + r.name, Want: Verdicts{Failure}, timeout: 1, LastRequest: true, probe: grpcHealth(""), servers: r.servers,
		})
	}
	return all
}
