package xds

import (
	"context"
	"sync"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	protobuf "google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// frame is an encoded response, which is sent unchanged to all streams.
type frame mem.BufferSlice

// codec is gRPC's codec with support for frames.
type codec struct{ encoding.CodecV2 }

// Marshal implements encoding.CodecV2.
func (c codec) Marshal(v any) (mem.BufferSlice, error) {
	if f, ok := v.(frame); ok {
		return mem.BufferSlice(f), nil
	}
	return c.CodecV2.Marshal(v)
}

// frameOf encodes a response.
func frameOf(t resource.Type, all ...*resource.Resource) (frame, error) {
	r := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: string(t), Nonce: "1"}
	for _, one := range all {
		r.Resources = append(r.Resources, &discoveryv3.Resource{Name: one.Name, Version: one.Version, Resource: one.Body})
	}
	data, err := protobuf.Marshal(r)
	return frame{mem.SliceBuffer(data)}, err
}

// broadcast is a floor: it sends all resources of a type to each client that subscribes to the type, and each change
// to all clients. It ignores all other state, and stores only the connected clients. A bare broadcast has no
// resources: it shows the cost of a connection and a stream.
type broadcast struct {
	discoveryv3.UnimplementedAggregatedDiscoveryServiceServer

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

func serveBroadcast(ctx context.Context, id *sondecp.Identity, w topology) error {
	b, err := newBroadcast(w)
	if err != nil {
		return err
	}
	now := w.forms()
	return b.run(ctx, id, func(service int) error {
		now[service] = !now[service]
		b.change(service, now[service])
		return nil
	})
}

func serveBare(ctx context.Context, id *sondecp.Identity, _ topology) error {
	b := &broadcast{peers: map[*peer]struct{}{}}
	return b.run(ctx, id, func(int) error { return nil })
}

func newBroadcast(w topology) (*broadcast, error) {
	p, err := generate(w)
	if err != nil {
		return nil, err
	}
	b := &broadcast{first: map[resource.Type]frame{}, changes: make([][2]frame, len(p.endpoints)), peers: map[*peer]struct{}{}}
	for t, all := range p.all {
		if b.first[t], err = frameOf(t, all...); err != nil {
			return nil, err
		}
	}
	for s, both := range p.endpoints {
		for form, r := range both {
			if b.changes[s][form], err = frameOf(resource.Endpoint, r); err != nil {
				return nil, err
			}
		}
	}
	return b, nil
}

func (b *broadcast) run(ctx context.Context, id *sondecp.Identity, change func(service int) error) error {
	server := controlplane.NewServer(id.Credentials, 0, grpc.ForceServerCodecV2(codec{encoding.GetCodecV2(proto.Name)}))
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, b)
	return serve(ctx, server, change)
}

// DeltaAggregatedResources implements discoveryv3.AggregatedDiscoveryServiceServer.
func (b *broadcast) DeltaAggregatedResources(stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesServer) error {
	p := &peer{stream: stream}
	b.mu.Lock()
	b.peers[p] = struct{}{}
	b.mu.Unlock()
	defer func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.peers, p)
	}()
	asked := map[string]bool{}
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		first, any := b.first[resource.Type(r.GetTypeUrl())]
		if asked[r.GetTypeUrl()] || !any {
			continue // an ACK
		}
		asked[r.GetTypeUrl()] = true
		if err := p.send(first); err != nil {
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
		_ = p.send(f) // the stream's own goroutine detects its end
	}
}
