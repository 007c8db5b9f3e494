package xds

import (
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"
)

// readBuffer of a connection, in bytes. A proxy says little; gRPC's own 32 KiB would be half of what a connection takes.
const readBuffer = 2 << 10

// ServerOptions are what the grpc.Server of Register has to be made with: the limit of a request, a codec that sends
// resources as they were encoded once and serves other services as gRPC's own does, no end before that of its streams.
func ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.MaxRecvMsgSize(MaxMessageSize),
		grpc.ForceServerCodecV2(Codec()),
		grpc.WaitForHandlers(true),
		grpc.ReadBufferSize(readBuffer),
	}
}

// Codec is that of ServerOptions, for streams in memory: what the server sends is a message for it alone.
func Codec() encoding.CodecV2 { return codec{encoding.GetCodecV2(grpcproto.Name)} }

// frame is a message that is bytes already.
type frame struct{ bytes mem.BufferSlice }

type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(frame); ok {
		return f.bytes, nil
	}
	return c.CodecV2.Marshal(v)
}

// delta is the response on the wire: the entries that all streams share, and a little of its own.
func (r *reply) delta() (frame, error) {
	bytes := make(mem.BufferSlice, 0, len(r.puts)+1)
	for _, p := range r.puts {
		bytes = append(bytes, mem.SliceBuffer(p.Entry))
	}
	own, err := proto.Marshal(&discoveryv3.DeltaDiscoveryResponse{
		TypeUrl: string(r.topic.kind), Nonce: r.nonce, RemovedResources: r.gone,
	})
	return frame{append(bytes, mem.SliceBuffer(own))}, err
}
