package fidelity_test

import (
	"slices"
	"strings"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// row2 is a case of a probe whose server speaks HTTP/2.
type row2 struct {
	name   string
	want   kubelet.Verdict
	answer func(*exchange2)
}

// answers2 makes cases of rows, of probes by HTTPS with these headers.
func answers2(rows []row2, headers ...corev1.HTTPHeader) []testCase {
	var all []testCase
	for _, r := range rows {
		all = append(all, testCase{
			name: "HTTP/2 " + r.name, want: verdicts{r.want}, probe: getTLS("/probe?a=b", headers...), servers: http2s(r.answer),
		})
	}
	return all
}

// begun answers 200, with these headers, and then does the rest.
func begun(headers []string, rest ...func(*exchange2)) func(*exchange2) {
	return steps2(headers2(append([]string{":status", "200"}, headers...)...), steps2(rest...))
}

// repeat does something so many times.
func repeat(n int, do func(*exchange2)) func(*exchange2) {
	return steps2(slices.Repeat([]func(*exchange2){do}, n)...)
}

// http2Answers are answers over HTTP/2.
func http2Answers() []testCase {
	good := reply2(200, "ok")
	several := list("Host", "x.example", "X-A", "1", "x-a", "2", "User-Agent", "", "TE", "trailers", "Cookie", "a=b", "Authorization", "x", "Keep-Alive", "1")
	return slices.Concat(
		answers2(http2Statuses()), answers2(http2Bodies()),
		answers2([]row2{{"with headers", success, good}}, several...),
		answers2([]row2{{"with Connection: keep-alive", success, good}}, header("Connection", "keep-alive")),
		answers2([]row2{{"with Upgrade", failure, good}}, header("Upgrade", "websocket")),
	)
}

func http2Statuses() []row2 {
	toNew := func(first func(*exchange2)) func(*exchange2) { return inTurn2(first, reply2(200, "ok")) }
	return []row2{
		{"200", success, reply2(200, "ok")},
		{"204", success, reply2(204, "")},
		{"304", warning, reply2(304, "")},
		{"404", failure, reply2(404, "no")},
		{"503", failure, reply2(503, "")},
		{"103 and 200", success, steps2(headers2(":status", "103"), reply2(200, "ok"))},
		{"100 times 103", success, steps2(repeat(100, headers2(":status", "103")), reply2(200, "ok"))},
		{"no status", failure, fields("x-a", "1")},
		{"status 099", failure, fields(":status", "099")},
		{"status 1000", failure, fields(":status", "1000")},
		{"status 20", failure, fields(":status", "20")},
		{"status -1", failure, fields(":status", "-1")},
		{"status 600", failure, fields(":status", "600")},
		{"status 999", failure, fields(":status", "999")},
		{"status 421", failure, fields(":status", "421")},
		{"status 100 alone", failure, fields(":status", "100")},
		{"two statuses", failure, fields(":status", "200", ":status", "500")},
		{"a status behind a header", failure, fields("x-a", "b", ":status", "200")},
		{"a path in the answer", failure, fields(":status", "200", ":path", "/")},
		{"a header with a newline", failure, fields(":status", "200", "x-a", "a\nb")},
		{"a header without a name", failure, fields(":status", "200", "", "a")},
		{"transfer-encoding", success, fields(":status", "200", "transfer-encoding", "chunked")},
		{"a length and no body", errored, fields(":status", "200", "content-length", "10")},
		{"304 with a length", errored, fields(":status", "304", "content-length", "10")},
		{"redirect", success, toNew(reply2(302, "", "location", "/new"))},
		{"redirect elsewhere", warning, reply2(302, "", "location", "https://elsewhere.example/")},
		{"redirect whose body is cut", success, toNew(steps2(headers2(":status", "302", "location", "/new"), resetStream(http2.ErrCodeInternal)))},
		{"RST_STREAM", failure, resetStream(http2.ErrCodeInternal)},
		{"RST_STREAM NO_ERROR", failure, resetStream(http2.ErrCodeNo)},
		{"RST_STREAM CANCEL", failure, resetStream(http2.ErrCodeCancel)},
		{"RST_STREAM HTTP_1_1_REQUIRED", failure, resetStream(http2.ErrCodeHTTP11Required)},
		{"connection closed", failure, closes2},
		{"an answer of HTTP/1", failure, steps2(func(y *exchange2) { y.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") }, closes2)},
	}
}

func http2Bodies() []row2 {
	padded := func(y *exchange2) { _ = y.framer.WriteDataPadded(y.stream, true, []byte("ok"), make([]byte, 200)) }
	return []row2{
		{"204 with a body", success, reply2(204, "ok")},
		{"304 with a body", warning, reply2(304, "ok")},
		{"body shorter than its length", errored, reply2(200, "ok", "content-length", "10")},
		{"body longer than its length", errored, reply2(200, "okay", "content-length", "2")},
		{"content-length that is none", success, reply2(200, "ok", "content-length", "x")},
		{"two lengths", success, reply2(200, "ok", "content-length", "2", "content-length", "3")},
		{"body before the headers", failure, steps2(data("ok"), reply2(200, "ok"))},
		{"body with padding", success, begun(nil, padded)},
		{"1,000 empty parts of a body", success, begun(nil, repeat(1000, data("")), lastData("ok"))},
		{"body of 1 MiB", success, begun(nil, repeat(64, data(strings.Repeat("x", 16<<10))), lastData(""))},
		{"body in too large a frame", errored, begun(nil, lastData(strings.Repeat("x", 1<<16)))},
		{"trailers", success, begun(nil, data("ok"), end("x-t", "1"))},
		{"trailers with a status", errored, begun(nil, data("ok"), end(":status", "200"))},
		{"body cut by RST_STREAM", errored, begun([]string{"content-length", "10"}, data("ok"), resetStream(http2.ErrCodeInternal))},
		{"RST_STREAM NO_ERROR after the headers", errored, begun(nil, resetStream(http2.ErrCodeNo))},
		{"RST_STREAM CANCEL after the headers", errored, begun(nil, resetStream(http2.ErrCodeCancel))},
		{"RST_STREAM HTTP_1_1_REQUIRED after the headers", errored, begun(nil, resetStream(http2.ErrCodeHTTP11Required))},
		{"closed after the headers", errored, begun(nil, closes2)},
		{"closed within the body, with 500", errored, steps2(headers2(":status", "500", "content-length", "9"), data("ok"), closes2)},
	}
}

// http2Timeouts never end.
func http2Timeouts() []testCase {
	all := answers2([]row2{
		{"body never ends", errored, begun(nil, data("ok"), hangs2)},
		{"10 KiB and then never the rest", success, begun(nil, data(strings.Repeat("x", 10<<10)), hangs2)},
		{"no answer", failure, hangs2},
	})
	for i := range all {
		all[i].timeout = 1
	}
	return all
}

// frameRow is what a server of HTTP/2 does besides to answer, and what probes by HTTP and by gRPC find.
type frameRow struct {
	name       string
	http, grpc kubelet.Verdict
	settings   []http2.Setting
	answer     func(*exchange2)
}

// frames are those of a server whose answer is good.
func frames(good func(*exchange2)) []frameRow {
	set := func(id http2.SettingID, value uint32) []http2.Setting { return []http2.Setting{{ID: id, Val: value}} }
	before := func(f func(*exchange2)) func(*exchange2) { return steps2(f, good) }
	goAway := func(last uint32, code http2.ErrCode) func(*exchange2) {
		return func(y *exchange2) { _ = y.framer.WriteGoAway(last, code, []byte("text")) }
	}
	goAwayFirst := func(code http2.ErrCode) func(*exchange2) { return inTurn2(steps2(goAway(0, code), closes2), good) }
	frame := func(kind http2.FrameType, stream uint32, payload string) func(*exchange2) {
		return func(y *exchange2) { _ = y.framer.WriteRawFrame(kind, 0, stream, []byte(payload)) }
	}
	return []frameRow{
		{"GOAWAY instead, then good", success, success, nil, goAwayFirst(http2.ErrCodeNo)},
		{"GOAWAY with an error, then good", failure, success, nil, goAwayFirst(http2.ErrCodeEnhanceYourCalm)},
		{"GOAWAY of this stream, then the answer", success, success, nil, before(goAway(1, http2.ErrCodeNo))},
		{"PING", success, success, nil, before(func(y *exchange2) { _ = y.framer.WritePing(false, [8]byte{1}) })},
		{"PUSH_PROMISE", failure, success, nil, before(func(y *exchange2) {
			_ = y.framer.WritePushPromise(http2.PushPromiseParam{StreamID: y.stream, PromiseID: 2, EndHeaders: true})
		})},
		{"a frame of an unknown type", success, success, nil, before(frame(0xee, 1, "text"))},
		{"a frame of a stream that is not", failure, success, nil, before(frame(http2.FrameData, 7, "text"))},
		{"a frame of garbage", failure, failure, nil, before(frame(http2.FrameSettings, 1, "abc"))},
		{"a window that overflows", failure, success, nil, before(func(y *exchange2) {
			_ = y.framer.WriteWindowUpdate(0, 1<<31-1)
			_ = y.framer.WriteWindowUpdate(0, 1<<31-1)
		})},
		{"SETTINGS in between", success, success, nil, before(func(y *exchange2) {
			_ = y.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		})},
		{"no streams allowed", success, failure, set(http2.SettingMaxConcurrentStreams, 0), good},
		{"one stream allowed", success, success, set(http2.SettingMaxConcurrentStreams, 1), good},
		{"a window of 0", success, failure, set(http2.SettingInitialWindowSize, 0), good},
		{"a window too large", failure, failure, set(http2.SettingInitialWindowSize, 1<<31), good},
		{"frames too small", failure, success, set(http2.SettingMaxFrameSize, 1), good},
		{"no table of headers", success, success, set(http2.SettingHeaderTableSize, 0), good},
		{"short lists of headers", success, failure, set(http2.SettingMaxHeaderListSize, 10), good},
		{"an unknown setting", success, success, set(0xee, 1), good},
		{"a header in capitals", failure, failure, nil, fields(":status", "200", "X-A", "b")},
		{"a long header", success, success, nil, before(headers2(":status", "103", "x-a", strings.Repeat("x", 10000)))},
		{"two times headers", errored, failure, nil, before(headers2(":status", "200"))},
		{"headers of another stream", success, success, nil, before(func(y *exchange2) {
			y.stream += 2
			y.headers(false, ":status", "200")
			y.stream -= 2
		})},
	}
}

// grpcFrames and httpFrames try them with each client.
func grpcFrames() []testCase {
	var all []testCase
	for _, c := range frames(health(1)) {
		all = append(all, testCase{
			name: "gRPC " + c.name, want: verdicts{c.grpc}, timeout: 2, lastRequest: true,
			probe: grpcHealth(""), servers: app(server{settings: c.settings, answer2: c.answer}),
		})
	}
	return all
}

func httpFrames() []testCase {
	var all []testCase
	for _, c := range frames(reply2(200, "ok")) {
		all = append(all, testCase{
			name: "HTTP/2 " + c.name, want: verdicts{c.http}, timeout: 2, lastRequest: true,
			probe: getTLS("/probe"), servers: http2s(settle(c.settings, c.answer)),
		})
	}
	return all
}

// settle sends settings when a connection's first request is there. A client of HTTP, unlike one of gRPC, does not wait for
// settings: sent before, they would meet the request anywhere on its way.
func settle(settings []http2.Setting, answer func(*exchange2)) func(*exchange2) {
	return func(y *exchange2) {
		if y.stream == 1 && len(settings) > 0 {
			_ = y.framer.WriteSettings(settings...)
		}
		answer(y)
	}
}
