package adsclient

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

const (
	method = "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
	// wideWindow is Envoy's window: the server never has to wait for a proxy that reads.
	wideWindow    = 16 << 20
	defaultWindow = 1<<16 - 1 // the default of HTTP/2
	maxFrame      = 1 << 14
	stream        = 1
	prefix        = 5 // bytes before each gRPC message
	smallMessage  = 64 << 10
)

// link is one gRPC stream on one HTTP/2 connection, without its own goroutine: the goroutine that reads also writes. It
// is not safe for concurrent use.
type link struct {
	framer  *http2.Framer
	out     *bufio.Writer
	queue   []byte // to send once the server's windows allow it
	data    []byte // rest of the last frame
	partial []byte // a message whose end is missing
	window  int64  // size of each receive window

	// How much may be sent, and how much was received since the last window update.
	sendConn, sendStream, streamInitial int64
	receivedConn, receivedStream        int64
}

// bodies has buffers for large messages.
var bodies sync.Pool

// openLink starts HTTP/2 on a connection and opens the stream.
func openLink(conn net.Conn, authority string, window int64) (*link, error) {
	out := bufio.NewWriterSize(conn, 4<<10)
	l := &link{
		framer: http2.NewFramer(out, conn), out: out, window: window,
		sendConn: defaultWindow, sendStream: defaultWindow, streamInitial: defaultWindow,
	}
	l.framer.SetReuseFrames()
	l.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	var block bytes.Buffer
	headers := hpack.NewEncoder(&block)
	for _, h := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":path", method}, {":authority", authority},
		{"content-type", "application/grpc"}, {"te", "trailers"},
	} {
		if err := headers.WriteField(hpack.HeaderField{Name: h[0], Value: h[1]}); err != nil {
			return nil, err
		}
	}
	_, err := io.WriteString(out, http2.ClientPreface)
	err = errors.Join(err, l.framer.WriteSettings(
		http2.Setting{ID: http2.SettingEnablePush},
		http2.Setting{ID: http2.SettingInitialWindowSize, Val: uint32(window)},
	))
	if window > defaultWindow {
		err = errors.Join(err, l.framer.WriteWindowUpdate(0, uint32(window-defaultWindow)))
	}
	return l, errors.Join(err, l.framer.WriteHeaders(http2.HeadersFrameParam{
		StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true,
	}))
}

// send queues a message, which flush sends.
func (l *link) send(r *request) {
	at := len(l.queue)
	l.queue = r.encode(append(l.queue, 0, 0, 0, 0, 0))
	binary.BigEndian.PutUint32(l.queue[at+1:], uint32(len(l.queue)-at-prefix))
}

// flush sends as much as the windows allow.
func (l *link) flush() error {
	for len(l.queue) > 0 {
		n := min(int64(len(l.queue)), maxFrame, l.sendConn, l.sendStream)
		if n <= 0 {
			break
		}
		if err := l.framer.WriteData(stream, false, l.queue[:n]); err != nil {
			return err
		}
		l.queue = l.queue[n:]
		l.sendConn -= n
		l.sendStream -= n
	}
	if len(l.queue) == 0 {
		l.queue = nil
	}
	return l.out.Flush()
}

// next returns the next message, which is valid until the next call. It flushes before it waits.
func (l *link) next() ([]byte, error) {
	for {
		message, err := l.take()
		if message != nil || err != nil {
			return message, err
		}
		if err := l.flush(); err != nil {
			return nil, err
		}
		frame, err := l.framer.ReadFrame()
		if err != nil {
			return nil, err
		}
		if err := l.handle(frame); err != nil {
			return nil, err
		}
	}
}

// take returns a complete message, or nil.
func (l *link) take() ([]byte, error) {
	if n := sizeOf(l.partial); n > 0 && len(l.partial) == n { // the last call returned it
		if cap(l.partial) > smallMessage {
			whole := l.partial[:0]
			bodies.Put(&whole)
		}
		l.partial = nil
	}
	if n := sizeOf(l.data); len(l.partial) == 0 && n > 0 && len(l.data) >= n {
		message := l.data[:n]
		l.data = l.data[n:]
		return body(message)
	}
	for len(l.data) > 0 {
		want := prefix
		if n := sizeOf(l.partial); n > 0 {
			want = n
			l.grow(n)
		}
		n := min(want-len(l.partial), len(l.data))
		l.partial = append(l.partial, l.data[:n]...)
		l.data = l.data[n:]
		if sizeOf(l.partial) == len(l.partial) {
			return body(l.partial)
		}
	}
	return nil, nil
}

// sizeOf returns the size of the message at the start of b, including its prefix, or 0 if b is too short to know.
func sizeOf(b []byte) int {
	if len(b) < prefix {
		return 0
	}
	return prefix + int(binary.BigEndian.Uint32(b[1:]))
}

func body(message []byte) ([]byte, error) {
	if message[0] != 0 {
		return nil, errors.New("read message: compressed messages are not supported")
	}
	return message[prefix:], nil
}

func (l *link) grow(n int) {
	if cap(l.partial) >= n {
		return
	}
	var large []byte
	if n > smallMessage {
		if b, ok := bodies.Get().(*[]byte); ok && cap(*b) >= n {
			large = *b
		}
	}
	if large == nil {
		large = make([]byte, 0, n)
	}
	l.partial = append(large[:0], l.partial...)
}

func (l *link) handle(frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.DataFrame:
		l.data = f.Data()
		if err := l.received(int64(f.Length)); err != nil {
			return err
		}
		if f.StreamEnded() {
			return io.ErrUnexpectedEOF
		}
	case *http2.MetaHeadersFrame:
		return statusOf(f)
	case *http2.SettingsFrame:
		return l.settings(f)
	case *http2.PingFrame:
		if !f.IsAck() {
			return l.framer.WritePing(true, f.Data)
		}
	case *http2.WindowUpdateFrame:
		if f.StreamID == 0 {
			l.sendConn += int64(f.Increment)
		} else {
			l.sendStream += int64(f.Increment)
		}
	case *http2.RSTStreamFrame:
		return fmt.Errorf("the server reset the stream: %s", f.ErrCode)
	case *http2.GoAwayFrame:
		if f.ErrCode != http2.ErrCodeNo || f.LastStreamID < stream {
			return fmt.Errorf("the server ended the connection: %s %s", f.ErrCode, f.DebugData())
		}
	}
	return nil
}

// received sends window updates when half of a window is used.
func (l *link) received(n int64) error {
	l.receivedConn += n
	l.receivedStream += n
	if l.receivedConn < l.window/2 {
		return nil
	}
	err := errors.Join(
		l.framer.WriteWindowUpdate(0, uint32(l.receivedConn)),
		l.framer.WriteWindowUpdate(stream, uint32(l.receivedStream)))
	l.receivedConn, l.receivedStream = 0, 0
	return err
}

func (l *link) settings(f *http2.SettingsFrame) error {
	if f.IsAck() {
		return nil
	}
	if v, ok := f.Value(http2.SettingInitialWindowSize); ok {
		l.sendStream += int64(v) - l.streamInitial
		l.streamInitial = int64(v)
	}
	return l.framer.WriteSettingsAck()
}

// statusOf returns the error of headers that end a stream, and nil for headers that begin it.
func statusOf(f *http2.MetaHeadersFrame) error {
	code, message := "", ""
	for _, h := range f.Fields {
		switch h.Name {
		case ":status":
			if h.Value != "200" {
				return fmt.Errorf("the server answered with HTTP status %s", h.Value)
			}
		case "grpc-status":
			code = h.Value
		case "grpc-message":
			message = h.Value
		}
	}
	switch {
	case code == "" && !f.StreamEnded():
		return nil
	case code == "" || code == "0":
		return io.EOF
	}
	n, err := strconv.ParseUint(code, 10, 32)
	if err != nil {
		return fmt.Errorf("read grpc-status %q: %w", code, err)
	}
	return status.Error(codes.Code(n), message)
}
