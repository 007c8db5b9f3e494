package cases

import (
	"bytes"
	"encoding/binary"
	"io"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// exchange2 is one HTTP/2 request. The server does not use a library, so that it can be wrong in every way.
type exchange2 struct {
	*exchange
	framer *http2.Framer
	stream uint32
	// fields are the headers of the request. body is its body.
	fields []hpack.HeaderField
	body   []byte
	encode bytes.Buffer
}

// serve2 reads requests until the connection ends.
func serve2(x *exchange, answer func(*exchange2), settings ...http2.Setting) {
	preface := make([]byte, len(http2.ClientPreface))
	n, err := io.ReadFull(x.read, preface)
	if err != nil || string(preface) != http2.ClientPreface {
		x.note("no HTTP/2: %q", preface[:n])
		return
	}
	y := &exchange2{exchange: x, framer: http2.NewFramer(x.conn, x.read)}
	y.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if err := y.framer.WriteSettings(settings...); err != nil {
		return
	}
	for !x.closed {
		frame, err := y.framer.ReadFrame()
		if err != nil {
			return
		}
		if y.take(frame) {
			x.mu.Lock()
			x.requests++
			x.n = x.requests
			x.mu.Unlock()
			y.noteRequest()
			answer(y)
		}
	}
}

// take reads one frame, and reports whether it ends a request.
func (y *exchange2) take(frame http2.Frame) bool {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			_ = y.framer.WriteSettingsAck()
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			_ = y.framer.WritePing(true, f.Data)
		}
	case *http2.MetaHeadersFrame:
		y.stream, y.fields, y.body = f.StreamID, append([]hpack.HeaderField(nil), f.Fields...), nil
		return f.StreamEnded()
	case *http2.DataFrame:
		y.body = append(y.body, f.Data()...)
		return f.StreamEnded()
	}
	return false
}

func (y *exchange2) noteRequest() {
	y.note("HTTP/2 stream %d\n", y.stream)
	if !y.grpc() { // net/http sends these in random order
		slices.SortStableFunc(y.fields, func(a, b hpack.HeaderField) int { return strings.Compare(a.Name, b.Name) })
	}
	for _, field := range y.fields {
		if field.Name == ":path" {
			y.target = field.Value
		}
		value := field.Value
		if field.Name == "grpc-timeout" {
			value = "(what remains)"
		}
		y.note("%s: %s\n", field.Name, value)
	}
	y.note("body %q\n", y.body)
}

// grpc reports whether the request is a gRPC call.
func (y *exchange2) grpc() bool {
	return slices.Contains(y.fields, hpack.HeaderField{Name: "content-type", Value: "application/grpc"})
}

// headers sends headers, which may end the stream.
func (y *exchange2) headers(end bool, pairs ...string) {
	y.encode.Reset()
	encoder := hpack.NewEncoder(&y.encode)
	encoder.SetMaxDynamicTableSize(0)
	for i := 0; i+1 < len(pairs); i += 2 {
		_ = encoder.WriteField(hpack.HeaderField{Name: pairs[i], Value: pairs[i+1]})
	}
	_ = y.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: y.stream, BlockFragment: y.encode.Bytes(), EndStream: end, EndHeaders: true,
	})
}

// data sends a part of the body.
func (y *exchange2) data(end bool, body []byte) { _ = y.framer.WriteData(y.stream, end, body) }

// reply2 sends a whole answer.
func (y *exchange2) reply2(code int, body string, pairs ...string) {
	y.headers(body == "", append([]string{":status", strconv.Itoa(code)}, pairs...)...)
	if body != "" {
		y.data(true, []byte(body))
	}
}

// beginGRPC begins a gRPC answer.
func beginGRPC(y *exchange2) { y.headers(false, ":status", "200", "content-type", "application/grpc") }

// message frames a gRPC message.
func message(body []byte) []byte {
	framed := binary.BigEndian.AppendUint32([]byte{0}, uint32(len(body)))
	return append(framed, body...)
}

// healthStatus is a HealthCheckResponse.
func healthStatus(status byte) []byte {
	if status == 0 {
		return nil
	}
	return []byte{8, status}
}

// health answers as a gRPC server does.
func health(status byte) func(*exchange2) { return grpcData(message(healthStatus(status))) }

// grpcCode answers with only a status.
func grpcCode(code, text string) func(*exchange2) {
	return fields(":status", "200", "content-type", "application/grpc", "grpc-status", code, "grpc-message", text)
}

// grpcData answers with a good status, and these bytes as the body.
func grpcData(body []byte) func(*exchange2) {
	return steps2(beginGRPC, data(string(body)), end("grpc-status", "0"))
}

// resetStream ends the stream of the request.
func resetStream(code http2.ErrCode) func(*exchange2) {
	return func(y *exchange2) { _ = y.framer.WriteRSTStream(y.stream, code) }
}
