package generator

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// flow limits the streams and windows of an HTTP/2 connection (Envoy: api-v3/config/core/v3/protocol.proto,
// Http2ProtocolOptions). Envoy's defaults are 1,024 streams with 16 MiB each.
type flow struct {
	// streams is the maximum number of concurrent streams of a connection.
	streams uint32
	// stream and connection are windows in bytes. Envoy also buffers this much for a stream whose data it cannot forward.
	stream, connection uint32
}

// fromClients is for connections from other proxies to an inbound. A client whose connection has all its streams in use
// waits silently. The limit is higher than in common servers, such as 250 in Go and 128 in nginx. A stream's window
// allows 2 Gbit/s over 1 ms.
func fromClients() flow { return flow{streams: 320, stream: 256 << 10, connection: 2 << 20} }

// toApplication is for connections to the application, which are local, so a smaller window is enough. All clients
// share these connections, so the connection's window is larger than all their streams need: a stream that is not read
// must not block others.
func toApplication() flow { return flow{streams: 100, stream: 128 << 10, connection: 1 << 30} }

// outbound is for the application's own connections to Envoy. A body that fits in the window of a stream can be resent
// to another endpoint.
func outbound() flow { return flow{streams: 10000, stream: 1 << 20, connection: 16 << 20} }

// toServices is for Envoy's connections to services. RFC 9113, section 6.5.2, recommends that servers allow at least
// 100 streams; more could exceed the limit of a server whose SETTINGS have not arrived yet.
func toServices() flow { return flow{streams: 100, stream: 1 << 20, connection: 16 << 20} }

// How many bytes Envoy buffers for each direction of a connection. Envoy's default is 1 MiB, which outbound connections
// keep. Envoy decodes a whole buffer of each connection before it checks its heap, and headers may need a hundred times
// their bytes, so clientBuffer is as small as a TLS record.
const (
	clientBuffer      = 16 << 10
	applicationBuffer = 64 << 10
)

// maxIdleStream ends no stream. It exists for reducedTimeouts, which has no effect on streams without a timeout.
const maxIdleStream = 365 * 24 * time.Hour

// http2 makes an invalid message end its own stream, not the whole connection (Envoy:
// api-v3/config/core/v3/protocol.proto, override_stream_error_on_invalid_http_message).
func http2(f flow) *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		OverrideStreamErrorOnInvalidHttpMessage: wrapperspb.Bool(true),
		MaxConcurrentStreams:                    wrapperspb.UInt32(f.streams),
		InitialStreamWindowSize:                 wrapperspb.UInt32(f.stream),
		InitialConnectionWindowSize:             wrapperspb.UInt32(f.connection),
	}
}

// answersAlways exempts a listener from overload protection and connection limits, for clients that decide whether the
// pod lives (Envoy: api-v3/config/listener/v3/listener.proto, bypass_overload_manager).
func answersAlways(l *listenerv3.Listener) *listenerv3.Listener {
	l.BypassOverloadManager, l.IgnoreGlobalConnLimit = true, true
	return l
}
