package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// readBuffer is the size of a connection's read buffer in bytes. A proxy sends little, and gRPC's default of 32 KiB
// would be half of the memory of a connection.
const readBuffer = 2 << 10

// ServerOptions returns options that the grpc.Server of Register must have:
//   - The size of a request is limited.
//   - Codec is the codec, for all services of the grpc.Server.
//   - Stop waits until all handlers have returned, including streams whose connection is closed (WaitForHandlers).
//     After that no stream can start another goroutine, so Server.Wait misses none.
//   - The read buffers of connections are small.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(maxMessageSize),
		grpc.ForceServerCodecV2(Codec()),
		grpc.WaitForHandlers(true),
		grpc.ReadBufferSize(readBuffer),
	}
}

// Codec returns the codec of ServerOptions. It sends resources in the bytes that were encoded once for all streams,
// receives requests undecoded, and leaves all other messages to gRPC's own codec. It is exported for streams in memory,
// since no other codec supports the messages that streams send and receive (SendMsg, RecvMsg).
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// rawMessage is a message that is already encoded.
type rawMessage struct{ bytes mem.BufferSlice }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if m, ok := v.(rawMessage); ok {
		return m.bytes, nil
	}
	return c.CodecV2.Marshal(v)
}

// Unmarshal implements encoding.CodecV2.
func (c codec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*rawRequest); ok {
		r.buffer = data.MaterializeToBuffer(mem.DefaultBufferPool())
		return nil
	}
	return c.CodecV2.Unmarshal(data, v)
}

// delta returns the encoded delta response: entries shared by all streams, and a few bytes of this stream.
func (r *response) delta() (rawMessage, error) {
	bytes := make(mem.BufferSlice, 0, len(r.resources)+1)
	for i := range r.resources { // not by value: the proxy may change mention.before meanwhile
		bytes = append(bytes, mem.SliceBuffer(r.resources[i].resource.Entry))
	}
	var removed []string
	for i := range r.removed {
		removed = append(removed, r.removed[i].name)
	}
	own, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: string(r.subscription.kind), Nonce: r.nonce, RemovedResources: removed,
	})
	return rawMessage{append(bytes, mem.SliceBuffer(own))}, err
}
