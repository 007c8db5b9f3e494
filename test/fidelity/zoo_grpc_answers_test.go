package fidelity_test

import (
	"fmt"
	"strings"

	"golang.org/x/net/http2"

	"github.com/sonde-mesh/sonde/test/fidelity/kubelet"
)

// grpcAnswers are answers of gRPC with something odd in the message, the trailers or the headers.
func grpcAnswers() (z zoo) {
	serving := message(healthStatus(1))
	for _, c := range []struct {
		name string
		want kubelet.Verdict
		body []byte
	}{
		{"status 100", failure, message([]byte{8, 100})},
		{"status -1", failure, message([]byte{8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})},
		{"status 2^32 + 1", success, message([]byte{8, 0x81, 0x80, 0x80, 0x80, 0x10})},
		{"two statuses, the last SERVING", success, message([]byte{8, 2, 8, 1})},
		{"two statuses, the first SERVING", failure, message([]byte{8, 1, 8, 2})},
		{"status of another type", failure, message([]byte{13, 1, 0, 0, 0})},
		{"field 0", failure, message([]byte{0, 1})},
		{"message that says it is compressed", failure, append([]byte{1}, serving[1:]...)},
		{"message with an odd flag", failure, append([]byte{2}, serving[1:]...)},
		{"message longer than it says", failure, []byte{0, 0, 0, 0, 1, 8, 1}},
		{"message shorter than it says", failure, []byte{0, 0, 0, 0, 9, 8, 1}},
		{"half a prefix", failure, []byte{0, 0, 0}},
	} {
		z.grpcIn(c.name, c.want, func(y *exchange2) {
			y.answerGRPC()
			y.data(false, c.body)
			y.headers(true, "grpc-status", "0")
		})
	}
	answered := func(trailers []string, headers ...string) func(*exchange2) {
		return func(y *exchange2) {
			y.headers(false, headers...)
			y.data(false, serving)
			y.headers(true, trailers...)
		}
	}
	const kind, grpc = "content-type", "application/grpc"
	for text, want := range sorted(map[string]kubelet.Verdict{
		"-1": failure, "+0": success, "00": success, "": failure, "0x0": failure, "18": failure, "4294967296": failure, "99999999999999999999": failure,
	}) {
		z.grpcIn(fmt.Sprintf("trailer grpc-status %q", text), want, answered([]string{"grpc-status", text}, ":status", "200", kind, grpc))
	}
	for _, c := range []struct {
		name     string
		want     kubelet.Verdict
		trailers []string
	}{
		{"grpc-status 0 and 5", failure, []string{"grpc-status", "0", "grpc-status", "5"}},
		{"grpc-status 5 and 0", success, []string{"grpc-status", "5", "grpc-status", "0"}},
		{"no grpc-status", failure, []string{"x-t", "1"}},
		{"bad details", failure, []string{"grpc-status", "0", "grpc-status-details-bin", "!!!"}},
		{"a bad binary value", failure, []string{"grpc-status", "0", "x-bin", "!!!"}},
		{"15 KB", success, []string{"grpc-status", "0", "x-t", strings.Repeat("x", 15000)}},
	} {
		z.grpcIn("trailers with "+c.name, c.want, answered(c.trailers, ":status", "200", kind, grpc))
	}
	for text, want := range sorted(map[string]kubelet.Verdict{
		"APPLICATION/GRPC": failure, "application/grpc; charset=utf-8": success, "application/grpc;": success, "application/grpc+": success,
		"application/grpcx": failure, "application/grpc-web": failure, "application/json": failure, "": failure,
	}) {
		z.grpcIn(fmt.Sprintf("content type %q", text), want, answered([]string{"grpc-status", "0"}, ":status", "200", kind, text))
	}
	for _, status := range []string{"404", "503", "099", "abc"} {
		z.grpcIn("HTTP status "+status+", and gRPC", success, answered([]string{"grpc-status", "0"}, ":status", status, kind, grpc))
	}
	z.grpcIn("HTTP status 103 before", success, func(y *exchange2) {
		y.headers(false, ":status", "103")
		health(1)(y)
	})
	z.grpcIn("grpc-status 5 before the message", success, answered([]string{"grpc-status", "0"}, ":status", "200", kind, grpc, "grpc-status", "5"))
	z.grpcIn("encoding gzip, which is not used", success, answered([]string{"grpc-status", "0"}, ":status", "200", kind, grpc, "grpc-encoding", "gzip"))
	z.grpcIn("UNAVAILABLE once", failure, func(y *exchange2) {
		if y.n == 1 {
			grpcCode("14", "a reason")(y)
			return
		}
		health(1)(y)
	})
	for _, code := range []http2.ErrCode{http2.ErrCodeNo, http2.ErrCodeFlowControl, http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm, http2.ErrCodeHTTP11Required} {
		z.grpcIn("RST_STREAM "+code.String(), failure, func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, code) })
	}
	return z
}
