package cases

import (
	"slices"
	"strings"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"
)

// row2 is a case of a probe whose server speaks HTTP/2.
type row2 struct {
	name   string
	want   Verdict
	answer func(*exchange2)
}

// answers2 turns rows into cases of HTTPS probes with these headers.
func answers2(rows []row2, headers ...corev1.HTTPHeader) []Case {
	var all []Case
	for _, r := range rows {
		all = append(all, Case{
			Name: "HTTP/2 " + r.name, Want: Verdicts{r.want}, probe: getTLS("/probe?a=b", headers...), servers: http2s(r.answer),
		})
	}
	return all
}

// begun answers 200 with these headers, and then does the rest.
func begun(headers []string, rest ...func(*exchange2)) func(*exchange2) {
	return steps2(headers2(append([]string{":status", "200"}, headers...)...), steps2(rest...))
}

// repeat does something n times.
func repeat(n int, do func(*exchange2)) func(*exchange2) {
	return steps2(slices.Repeat([]func(*exchange2){do}, n)...)
}

// http2Answers are answers over HTTP/2.
func http2Answers() []Case {
	good := reply2(200, "ok")
	several := list("Host", "x.example", "X-A", "1", "x-a", "2", "User-Agent", "", "TE", "trailers", "Cookie", "a=b",
		"Authorization", "x", "Keep-Alive", "1")
	return slices.Concat(
		answers2(http2Statuses()), answers2(http2Bodies()),
		answers2([]row2{{"with headers", Success, good}}, several...),
		answers2([]row2{{"with Connection: keep-alive", Success, good}}, header("Connection", "keep-alive")),
		answers2([]row2{{"with Upgrade", Failure, good}}, header("Upgrade", "websocket")),
	)
}

func http2Statuses() []row2 {
	toNew := func(first func(*exchange2)) func(*exchange2) { return inTurn2(first, reply2(200, "ok")) }
	return []row2{
		{"200", Success, reply2(200, "ok")},
		{"204", Success, reply2(204, "")},
		{"304", Warning, reply2(304, "")},
		{"404", Failure, reply2(404, "no")},
		{"503", Failure, reply2(503, "")},
		{"103 and 200", Success, steps2(headers2(":status", "103"), reply2(200, "ok"))},
		{"100 times 103", Success, steps2(repeat(100, headers2(":status", "103")), reply2(200, "ok"))},
		{"no status", Failure, fields("x-a", "1")},
		{"status 099", Failure, fields(":status", "099")},
		{"status 1000", Failure, fields(":status", "1000")},
		{"status 20", Failure, fields(":status", "20")},
		{"status -1", Failure, fields(":status", "-1")},
		{"status 600", Failure, fields(":status", "600")},
		{"status 999", Failure, fields(":status", "999")},
		{"status 421", Failure, fields(":status", "421")},
		{"status 100 alone", Failure, fields(":status", "100")},
		{"two statuses", Failure, fields(":status", "200", ":status", "500")},
		{"a status behind a header", Failure, fields("x-a", "b", ":status", "200")},
		{"a path in the answer", Failure, fields(":status", "200", ":path", "/")},
		{"a header with a newline", Failure, fields(":status", "200", "x-a", "a\nb")},
		{"a header without a name", Failure, fields(":status", "200", "", "a")},
		{"transfer-encoding", Success, fields(":status", "200", "transfer-encoding", "chunked")},
		{"a length and no body", Errored, fields(":status", "200", "content-length", "10")},
		{"304 with a length", Errored, fields(":status", "304", "content-length", "10")},
		{"redirect", Success, toNew(reply2(302, "", "location", "/new"))},
		{"redirect elsewhere", Warning, reply2(302, "", "location", "https://elsewhere.example/")},
		{
			"redirect whose body is cut", Success,
			toNew(steps2(headers2(":status", "302", "location", "/new"), resetStream(http2.ErrCodeInternal))),
		},
		{"RST_STREAM", Failure, resetStream(http2.ErrCodeInternal)},
		{"RST_STREAM NO_ERROR", Failure, resetStream(http2.ErrCodeNo)},
		{"RST_STREAM CANCEL", Failure, resetStream(http2.ErrCodeCancel)},
		{"RST_STREAM HTTP_1_1_REQUIRED", Failure, resetStream(http2.ErrCodeHTTP11Required)},
		{"connection closed", Failure, closes2},
		{
			"an answer of HTTP/1", Failure,
			steps2(func(y *exchange2) { y.raw("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok") }, closes2),
		},
	}
}

func http2Bodies() []row2 {
	padded := func(y *exchange2) { _ = y.framer.WriteDataPadded(y.stream, true, []byte("ok"), make([]byte, 200)) }
	return []row2{
		{"204 with a body", Success, reply2(204, "ok")},
		{"304 with a body", Warning, reply2(304, "ok")},
		{"body shorter than its length", Errored, reply2(200, "ok", "content-length", "10")},
		{"body longer than its length", Errored, reply2(200, "okay", "content-length", "2")},
		{"invalid content-length", Success, reply2(200, "ok", "content-length", "x")},
		{"two lengths", Success, reply2(200, "ok", "content-length", "2", "content-length", "3")},
		{"body before the headers", Failure, steps2(data("ok"), reply2(200, "ok"))},
		{"body with padding", Success, begun(nil, padded)},
		{"1,000 empty parts of a body", Success, begun(nil, repeat(1000, data("")), lastData("ok"))},
		{"body of 1 MiB", Success, begun(nil, repeat(64, data(strings.Repeat("x", 16<<10))), lastData(""))},
		{"body in too large a frame", Errored, begun(nil, lastData(strings.Repeat("x", 1<<16)))},
		{"trailers", Success, begun(nil, data("ok"), end("x-t", "1"))},
		{"trailers with a status", Errored, begun(nil, data("ok"), end(":status", "200"))},
		{
			"body cut by RST_STREAM", Errored,
			begun([]string{"content-length", "10"}, data("ok"), resetStream(http2.ErrCodeInternal)),
		},
		{"RST_STREAM NO_ERROR after the headers", Errored, begun(nil, resetStream(http2.ErrCodeNo))},
		{"RST_STREAM CANCEL after the headers", Errored, begun(nil, resetStream(http2.ErrCodeCancel))},
		{"RST_STREAM HTTP_1_1_REQUIRED after the headers", Errored, begun(nil, resetStream(http2.ErrCodeHTTP11Required))},
		{"closed after the headers", Errored, begun(nil, closes2)},
		{
			"closed within the body, with 500", Errored,
			steps2(headers2(":status", "500", "content-length", "9"), data("ok"), closes2),
		},
	}
}

// http2Timeouts are answers that never end.
func http2Timeouts() []Case {
	all := answers2([]row2{
		{"body never ends", Errored, begun(nil, data("ok"), hangs2)},
		{"10 KiB and then never the rest", Success, begun(nil, data(strings.Repeat("x", 10<<10)), hangs2)},
		{"no answer", Failure, hangs2},
	})
	for i := range all {
		all[i].timeout = 1
	}
	return all
}

// frameRow is what an HTTP/2 server does besides answering, and the verdicts of HTTP and gRPC probes.
type frameRow struct {
	name       string
	http, grpc Verdict
	settings   []http2.Setting
	answer     func(*exchange2)
}

// frames are unusual frames of a server that answers correctly.
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
		{"GOAWAY instead, then good", Success, Success, nil, goAwayFirst(http2.ErrCodeNo)},
		{"GOAWAY with an error, then good", Failure, Success, nil, goAwayFirst(http2.ErrCodeEnhanceYourCalm)},
		{"GOAWAY of this stream, then the answer", Success, Success, nil, before(goAway(1, http2.ErrCodeNo))},
		{"PING", Success, Success, nil, before(func(y *exchange2) { _ = y.framer.WritePing(false, [8]byte{1}) })},
		{"PUSH_PROMISE", Failure, Success, nil, before(func(y *exchange2) {
			_ = y.framer.WritePushPromise(http2.PushPromiseParam{StreamID: y.stream, PromiseID: 2, EndHeaders: true})
		})},
		{"a frame of an unknown type", Success, Success, nil, before(frame(0xee, 1, "text"))},
		{"a frame of a stream that is not", Failure, Success, nil, before(frame(http2.FrameData, 7, "text"))},
		{"a frame of garbage", Failure, Failure, nil, before(frame(http2.FrameSettings, 1, "abc"))},
		{"a window that overflows", Failure, Success, nil, before(func(y *exchange2) {
			_ = y.framer.WriteWindowUpdate(0, 1<<31-1)
			_ = y.framer.WriteWindowUpdate(0, 1<<31-1)
		})},
		{"SETTINGS in between", Success, Success, nil, before(func(y *exchange2) {
			_ = y.framer.WriteSettings(http2.Setting{ID: http2.SettingMaxConcurrentStreams, Val: 1})
		})},
		{"no streams allowed", Success, Failure, set(http2.SettingMaxConcurrentStreams, 0), good},
		{"one stream allowed", Success, Success, set(http2.SettingMaxConcurrentStreams, 1), good},
		{"a window of 0", Success, Failure, set(http2.SettingInitialWindowSize, 0), good},
		{"a window too large", Failure, Failure, set(http2.SettingInitialWindowSize, 1<<31), good},
		{"frames too small", Failure, Success, set(http2.SettingMaxFrameSize, 1), good},
		{"no table of headers", Success, Success, set(http2.SettingHeaderTableSize, 0), good},
		{"short lists of headers", Success, Failure, set(http2.SettingMaxHeaderListSize, 10), good},
		{"an unknown setting", Success, Success, set(0xee, 1), good},
		{"a header in capitals", Failure, Failure, nil, fields(":status", "200", "X-A", "b")},
		{"a long header", Success, Success, nil, before(headers2(":status", "103", "x-a", strings.Repeat("x", 10000)))},
		{"two times headers", Errored, Failure, nil, before(headers2(":status", "200"))},
		{"headers of another stream", Success, Success, nil, before(func(y *exchange2) {
			y.stream += 2
			y.headers(false, ":status", "200")
			y.stream -= 2
		})},
	}
}

// grpcFrames and httpFrames try these frames with each client.
func grpcFrames() []Case {
	var all []Case
	for _, c := range frames(health(1)) {
		all = append(all, Case{
			Name: "gRPC " + c.name, Want: Verdicts{c.grpc}, timeout: 2, LastRequest: true,
			probe: grpcHealth(""), servers: app(server{settings: c.settings, answer2: c.answer}),
		})
	}
	return all
}

func httpFrames() []Case {
	var all []Case
	for _, c := range frames(reply2(200, "ok")) {
		all = append(all, Case{
			Name: "HTTP/2 " + c.name, Want: Verdicts{c.http}, timeout: 2, LastRequest: true,
			probe: getTLS("/probe"), servers: http2s(settle(c.settings, c.answer)),
		})
	}
	return all
}

// settle sends settings after the first request of a connection has arrived. An HTTP client, unlike a gRPC client, does
// not wait for settings: if they were sent earlier, they could meet the request at any point.
func settle(settings []http2.Setting, answer func(*exchange2)) func(*exchange2) {
	return func(y *exchange2) {
		if y.stream == 1 && len(settings) > 0 {
			_ = y.framer.WriteSettings(settings...)
		}
		answer(y)
	}
}
