package fidelity_test

import (
	"crypto/tls"
	"strings"

	"golang.org/x/net/http2"
	corev1 "k8s.io/api/core/v1"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// frames is what a server of HTTP/2 may do besides to answer, to a client of HTTP or of gRPC.
func frames(good func(*exchange2)) []struct {
	name       string
	http, grpc kubelet.Verdict
	settings   []http2.Setting
	answer     func(*exchange2)
} {
	set := func(id http2.SettingID, value uint32) []http2.Setting { return []http2.Setting{{ID: id, Val: value}} }
	before := func(f func(*exchange2)) func(*exchange2) {
		return func(y *exchange2) {
			f(y)
			good(y)
		}
	}
	first := func(f func(*exchange2)) func(*exchange2) {
		return func(y *exchange2) {
			if y.n == 1 {
				f(y)
				return
			}
			good(y)
		}
	}
	goAway := func(last uint32, code http2.ErrCode) func(*exchange2) {
		return func(y *exchange2) { _ = y.framer.WriteGoAway(last, code, []byte("text")) }
	}
	leave := func(code http2.ErrCode) func(*exchange2) {
		return func(y *exchange2) {
			goAway(0, code)(y)
			y.close()
		}
	}
	frame := func(kind http2.FrameType, stream uint32, payload string) func(*exchange2) {
		return func(y *exchange2) { _ = y.framer.WriteRawFrame(kind, 0, stream, []byte(payload)) }
	}
	return []struct {
		name       string
		http, grpc kubelet.Verdict
		settings   []http2.Setting
		answer     func(*exchange2)
	}{
		{"GOAWAY instead, then good", success, success, nil, first(leave(http2.ErrCodeNo))},
		{"GOAWAY with an error, then good", failure, success, nil, first(leave(http2.ErrCodeEnhanceYourCalm))},
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
		{"a header in capitals", failure, failure, nil, func(y *exchange2) { y.headers(true, ":status", "200", "X-A", "b") }},
		{"a long header", success, success, nil, func(y *exchange2) {
			y.headers(false, ":status", "103", "x-a", strings.Repeat("x", 10000))
			good(y)
		}},
		{"two times headers", errored, failure, nil, before(func(y *exchange2) { y.headers(false, ":status", "200") })},
		{"headers of another stream", success, success, nil, before(func(y *exchange2) {
			y.stream += 2
			y.headers(false, ":status", "200")
			y.stream -= 2
		})},
	}
}

// grpcFrames and httpFrames try them with each client.
func grpcFrames() (z zoo) {
	for _, c := range frames(health(1)) {
		n := len(z)
		z.add(scenario{
			name: "gRPC " + c.name, want: []kubelet.Verdict{c.grpc}, timing: true, apart: true,
			containers: one(n, 2, func(p place) corev1.ProbeHandler { return grpcHealth(p, "") }),
			sites:      func(p place) []site { return []site{{port: p.app, settings: c.settings, answer2: c.answer}} },
		})
	}
	return z
}

func httpFrames() (z zoo) {
	for _, c := range frames(func(y *exchange2) { y.reply2(200, "ok") }) {
		n := len(z)
		z.add(scenario{
			name: "HTTP/2 " + c.name, want: []kubelet.Verdict{c.http}, timing: true, apart: true,
			containers: one(n, 2, func(p place) corev1.ProbeHandler { return getTLS(p, "/probe") }),
			sites: func(p place) []site {
				config := &tls.Config{Certificates: certificates().valid, NextProtos: []string{"h2"}}
				return []site{{port: p.app, tls: config, answer2: settle(c.settings, c.answer)}}
			},
		})
	}
	return z
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
