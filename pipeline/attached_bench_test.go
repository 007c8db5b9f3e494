package pipeline

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	benchPods     = 2000
	benchServices = 100
)

// BenchmarkAttached measures what a pod on Kubernetes takes once its Envoy is attached, beyond its place in the view:
// with one inbound, replicas of 100 workloads, and 100 Services that all see. B/own are the resources that it does not
// share, B/stream is the state of its ADS stream at rest, without its goroutines, gRPC and TLS.
func BenchmarkAttached(b *testing.B) {
	for _, protocol := range []mesh.Protocol{mesh.ProtocolTCP, mesh.ProtocolHTTP} {
		b.Run(string(protocol), func(b *testing.B) {
			for range b.N {
				measureAttached(b, protocol)
			}
		})
	}
}

func measureAttached(b *testing.B, protocol mesh.Protocol) {
	applied := make(chan struct{}, 1)
	p := New(Options{
		View: meshview.Options{ExplicitMeshes: true, Sources: []string{"bench"}, Applied: func(meshview.Change) { applied <- struct{}{} }},
	}, func(context.Context, string, *meshview.Proxy) error { return nil })
	ids := benchCluster(p.Builder, protocol)
	ctx, cancel := context.WithCancel(b.Context())
	var group errgroup.Group
	group.Go(func() error { return p.Run(ctx) })
	<-applied
	p.Translator.Attach(ids[0], resource.Metadata{}) // what all share counts for none
	before := heap()
	for _, id := range ids[1:] {
		p.Translator.Attach(id, resource.Metadata{})
	}
	attached := heap()
	var synced sync.WaitGroup
	for _, id := range ids[1:] {
		synced.Add(1)
		s := newBenchStream(ctx, id, synced.Done)
		group.Go(func() error { return p.XDS.DeltaAggregatedResources(s) })
	}
	synced.Wait()
	at := float64(len(ids) - 1)
	b.ReportMetric(float64(attached-before)/at, "B/own")
	b.ReportMetric(float64(heap()-attached)/at, "B/stream")
	cancel()
	_ = group.Wait() // streams end with ctx
	p.XDS.Wait()
}

// benchCluster passes in the objects that a cluster has, and returns the IDs of its proxies.
func benchCluster(builder *meshview.Builder, protocol mesh.Protocol) []mesh.ID {
	m := &mesh.Mesh{Name: mesh.DefaultMesh}
	m.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: "builtin", Mode: mesh.ModePermissive}}}
	objects := []mesh.Object{m}
	services := make([]*mesh.Service, benchServices)
	for i := range services {
		services[i] = &mesh.Service{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: serviceName(i)}}
		services[i].Spec.Addresses = []string{fmt.Sprintf("10.96.0.%d:80", i+1)}
		services[i].Spec.Protocol = protocol
		objects = append(objects, services[i])
	}
	var ids []mesh.ID
	for i := range benchPods {
		workload := i % benchServices
		d := &mesh.Dataplane{
			Meta:     mesh.Meta{Mesh: mesh.DefaultMesh, Name: mesh.ObjectDataplane("shop", fmt.Sprintf("web-%d-7d9c5b6f4-%05d", workload, i))},
			Identity: mesh.Identity{Path: mesh.ServiceAccountPath("shop", fmt.Sprint("web-", workload)), Instance: fmt.Sprintf("%036d", i)},
		}
		d.Spec.Networking = mesh.Networking{
			Address:             fmt.Sprintf("10.1.%d.%d", i/250, i%250+1),
			TransparentProxying: &mesh.TransparentProxying{},
			Inbound:             []mesh.Inbound{{Port: 8080, Tags: mesh.Tags{mesh.TagProtocol: string(protocol)}}},
		}
		s := &services[workload].Spec
		s.Endpoints = append(s.Endpoints, mesh.ServiceEndpoint{Address: d.Spec.Networking.Address, Port: 8080, Dataplane: d.Name})
		objects, ids = append(objects, d), append(ids, d.ID())
	}
	for _, o := range objects {
		o.SetDefaults()
		builder.Set("bench", o)
	}
	builder.Synced("bench")
	return ids
}

func serviceName(i int) string { return fmt.Sprintf("web-%d_shop_svc_80", i) }

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// benchStream is the stream of an Envoy that subscribes to everything, ACKs it, and is silent from then on.
type benchStream struct {
	grpc.ServerStream
	ctx      context.Context //nolint:containedctx // grpc.ServerStream has one
	requests chan *discoveryv3.DeltaDiscoveryRequest
	lacks    atomic.Int32 // types that it has not been sent yet
	synced   func()
}

func newBenchStream(ctx context.Context, node string, synced func()) *benchStream {
	var services []string
	for i := range benchServices {
		services = append(services, serviceName(i))
	}
	s := &benchStream{ctx: ctx, requests: make(chan *discoveryv3.DeltaDiscoveryRequest, 16), synced: synced}
	for _, t := range resource.Types() {
		r := &discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: string(t)}
		if t == resource.Endpoint || t == resource.Route {
			r.ResourceNamesSubscribe = services
		}
		s.requests <- r
		s.lacks.Add(1)
	}
	return s
}

func (s *benchStream) Context() context.Context { return s.ctx }

func (s *benchStream) Recv() (*discoveryv3.DeltaDiscoveryRequest, error) {
	r := &discoveryv3.DeltaDiscoveryRequest{}
	return r, s.RecvMsg(r)
}

func (s *benchStream) RecvMsg(m any) error {
	if len(s.requests) == 0 && s.lacks.CompareAndSwap(0, -1) {
		s.synced()
	}
	select {
	case r := <-s.requests:
		data, err := xds.Codec().Marshal(r)
		if err != nil {
			return err
		}
		return xds.Codec().Unmarshal(data, m)
	case <-s.ctx.Done():
		return io.EOF
	}
}

func (s *benchStream) SendMsg(m any) error {
	data, err := xds.Codec().Marshal(m)
	if err != nil {
		return err
	}
	r := &discoveryv3.DeltaDiscoveryResponse{}
	if err := proto.Unmarshal(data.Materialize(), r); err != nil {
		return err
	}
	s.lacks.Add(-1)
	s.requests <- &discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()}
	return nil
}

func (s *benchStream) Send(r *discoveryv3.DeltaDiscoveryResponse) error { return s.SendMsg(r) }
