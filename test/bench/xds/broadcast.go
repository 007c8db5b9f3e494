package main

import (
	"context"
	"fmt"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// frame is an encoded message. Its bytes are sent to all streams as they are.
type frame mem.BufferSlice

// raw is a request that is not decoded.
type raw struct{ bytes []byte }

// frames is the codec of frame and raw.
type frames struct{}

// Name implements encoding.CodecV2.
func (frames) Name() string { return "proto" }

// Marshal implements encoding.CodecV2.
func (frames) Marshal(v any) (mem.BufferSlice, error) {
	f, ok := v.(frame)
	if !ok {
		return nil, fmt.Errorf("encode %T: want a frame", v)
	}
	return mem.BufferSlice(f), nil
}

// Unmarshal implements encoding.CodecV2.
func (frames) Unmarshal(data mem.BufferSlice, v any) error {
	r, ok := v.(*raw)
	if !ok {
		return fmt.Errorf("decode %T: want raw bytes", v)
	}
	r.bytes = append(r.bytes[:0], data.Materialize()...)
	return nil
}

// stringField returns a string field of an encoded message.
func stringField(b []byte, want protowire.Number) string {
	for len(b) > 0 {
		field, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return ""
		}
		if field == want && kind == protowire.BytesType {
			s, _ := protowire.ConsumeString(b[n:])
			return s
		}
		b = b[n:]
		if n = protowire.ConsumeFieldValue(field, kind, b); n < 0 {
			return ""
		}
		b = b[n:]
	}
	return ""
}

func typeOf(r *raw) resource.Type { return resource.Type(stringField(r.bytes, 2)) }

// frameOf encodes a response.
func frameOf(t resource.Type, list []entry) (frame, error) {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: string(t), Nonce: "1"}
	for _, e := range list {
		r.Resources = append(r.Resources, &discoveryv3.Resource{
			Name: e.Name, Version: e.Version, Resource: &anypb.Any{TypeUrl: string(t), Value: e.Body},
		})
	}
	b, err := proto.Marshal(r)
	return frame{mem.SliceBuffer(b)}, err
}

// broadcast is a floor: it sends all resources of a type to whoever asks for the type, and each change to everybody. It
// looks at nothing else, and remembers only who is connected.
type broadcast struct {
	first   map[resource.Type]frame
	changes [][2]frame // by service and form

	mu    sync.Mutex
	peers map[*peer]struct{}
}

type peer struct {
	mu     sync.Mutex // gRPC allows one sender at a time
	stream grpc.ServerStream
}

func (p *peer) send(f frame) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stream.SendMsg(f)
}

func serveBroadcast(ctx context.Context, id *sondecp.Identity, r roleOptions) error {
	b, err := newBroadcast(r.payload)
	if err != nil {
		return err
	}
	server := controlplane.NewServer(id.Credentials, 0, grpc.ForceServerCodecV2(frames{}))
	server.RegisterService(service(b.serve), nil)
	now := r.topology.forms()
	return serveSubject(ctx, server, func(service int) error {
		now[service] = !now[service]
		b.change(service, now[service])
		return nil
	})
}

func newBroadcast(path string) (*broadcast, error) {
	p, err := readPayload(path)
	if err != nil {
		return nil, err
	}
	b := &broadcast{first: map[resource.Type]frame{}, changes: make([][2]frame, len(p.Endpoints)), peers: map[*peer]struct{}{}}
	for t, list := range p.All {
		if b.first[t], err = frameOf(t, list); err != nil {
			return nil, err
		}
	}
	for s, both := range p.Endpoints {
		for form, e := range both {
			if b.changes[s][form], err = frameOf(resource.Endpoint, []entry{e}); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

// service describes ADS to gRPC.
func service(handler func(grpc.ServerStream) error) *grpc.ServiceDesc {
	return &grpc.ServiceDesc{
		ServiceName: "envoy.service.discovery.v3.AggregatedDiscoveryService",
		Streams: []grpc.StreamDesc{{
			StreamName: "DeltaAggregatedResources", ServerStreams: true, ClientStreams: true,
			Handler: func(_ any, stream grpc.ServerStream) error { return handler(stream) },
		}},
	}
}

func (b *broadcast) serve(stream grpc.ServerStream) error {
	p := &peer{stream: stream}
	b.mu.Lock()
	b.peers[p] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.peers, p)
	}()
	asked := map[resource.Type]bool{}
	for {
		var r raw
		if err := stream.RecvMsg(&r); err != nil {
			return err
		}
		t := typeOf(&r)
		if asked[t] {
			continue // an ACK
		}
		asked[t] = true
		if err := p.send(b.first[t]); err != nil {
			return err
		}
	}
}

func (b *broadcast) change(service int, form bool) {
	f := b.changes[service][0]
	if form {
		f = b.changes[service][1]
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	for p := range b.peers {
		_ = p.send(f) // the stream's own goroutine sees that it has ended
	}
}

// serveBare reads and sends nothing: it shows what a connection and a stream cost.
func serveBare(ctx context.Context, id *sondecp.Identity, _ roleOptions) error {
	server := controlplane.NewServer(id.Credentials, 0, grpc.ForceServerCodecV2(frames{}))
	server.RegisterService(service(func(stream grpc.ServerStream) error {
		for {
			var r raw
			if err := stream.RecvMsg(&r); err != nil {
				return err
			}
		}
	}), nil)
	return serveSubject(ctx, server, func(int) error { return nil })
}
