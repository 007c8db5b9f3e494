package generator

import (
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

// flow limits what a connection of HTTP/2 may hold (Envoy: api-v3/config/core/v3/protocol.proto, Http2ProtocolOptions). Envoy's defaults are 1,024 streams
// with 16 MiB each.
type flow struct {
	// streams is how many a connection may have at once.
	streams uint32
	// stream and connection are windows in bytes. Envoy also holds so much for a stream that cannot be sent on.
	stream, connection uint32
}

// fromClients is for connections to an inbound, which others make. They have as many streams as RFC 9113 (6.5.2) wants at least, and a stream has
// a window for 2 Gbit/s over 1 ms.
func fromClients() flow { return flow{streams: 100, stream: 256 << 10, connection: 2 << 20} }

// toApplication is for connections to the application, which are local: a smaller window is enough. All clients share them, so that the window
// of a connection is there for none: a stream that is not read stops no other.
func toApplication() flow { return flow{streams: 100, stream: 128 << 10, connection: 1 << 30} }

// outbound is for the application's own requests: its connections to Envoy, and Envoy's to services. A body that fits in the window of a stream can be sent
// again to another endpoint.
func outbound() flow { return flow{streams: 1024, stream: 1 << 20, connection: 16 << 20} }

// inboundBuffer is how many bytes Envoy holds for each direction of a connection that others make. Its default is 1 MiB, which outbound keeps.
const inboundBuffer = 64 << 10

// maxIdleStream ends no stream: it is there for reducedTimeouts, which has no effect on streams without a timeout.
const maxIdleStream = 365 * 24 * time.Hour

// http2 makes an invalid message end its own stream, not the whole connection (Envoy: api-v3/config/core/v3/protocol.proto,
// override_stream_error_on_invalid_http_message).
func http2(f flow) *corev3.Http2ProtocolOptions {
	return &corev3.Http2ProtocolOptions{
		OverrideStreamErrorOnInvalidHttpMessage: wrapperspb.Bool(true),
		MaxConcurrentStreams:                    wrapperspb.UInt32(f.streams),
		InitialStreamWindowSize:                 wrapperspb.UInt32(f.stream),
		InitialConnectionWindowSize:             wrapperspb.UInt32(f.connection),
	}
}

// answersAlways has a listener answer whatever others do to Envoy: it is for clients that decide about the life of the pod
// (Envoy: api-v3/config/listener/v3/listener.proto, bypass_overload_manager).
func answersAlways(l *listenerv3.Listener) *listenerv3.Listener {
	l.BypassOverloadManager, l.IgnoreGlobalConnLimit = true, true
	return l
}
