package pipeline

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/grpctest"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// slowEnvoy is a client that answers when the test says so.
type slowEnvoy struct {
	t      *testing.T
	stream discoveryv3.AggregatedDiscoveryService_DeltaAggregatedResourcesClient
}

func connectEnvoy(t *testing.T, p *Pipeline, node string) *slowEnvoy {
	t.Helper()
	server := grpc.NewServer(xds.ServerOptions()...)
	p.XDS.Register(server)
	t.Cleanup(p.XDS.Wait)
	conn := grpctest.Connect(t, server)
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(conn).DeltaAggregatedResources(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	e := &slowEnvoy{t, stream}
	e.send(&discoveryv3.DeltaDiscoveryRequest{Node: &corev3.Node{Id: node}, TypeUrl: string(resource.Cluster)})
	return e
}

func (e *slowEnvoy) send(r *discoveryv3.DeltaDiscoveryRequest) {
	e.t.Helper()
	if err := e.stream.Send(r); err != nil {
		e.t.Fatal(err)
	}
}

func (e *slowEnvoy) receive() *discoveryv3.DeltaDiscoveryResponse {
	e.t.Helper()
	r, err := e.stream.Recv()
	if err != nil {
		e.t.Fatal(err)
	}
	return r
}

func (e *slowEnvoy) ack(r *discoveryv3.DeltaDiscoveryResponse) {
	e.t.Helper()
	e.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: r.GetTypeUrl(), ResponseNonce: r.GetNonce()})
}

// api returns the Dataplane of a service, and its client.
func api(ready bool) *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "api-1"}}
	d.Spec.Networking = mesh.Networking{Address: "10.0.0.1", Inbound: []mesh.Inbound{{
		Port: 80, Tags: mesh.Tags{mesh.TagService: "api"}, Health: &mesh.Health{Ready: &ready},
	}}}
	d.SetDefaults()
	return d
}

func client() *mesh.Dataplane {
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "web-1"}}
	d.Spec.Networking = mesh.Networking{Address: "10.0.0.2", Outbound: []mesh.Outbound{{Port: 10001, Tags: mesh.Tags{mesh.TagService: "api"}}}}
	d.SetDefaults()
	return d
}

// TestPublishingWaitsForClients shows that a change of an endpoint counts as taken when its client has answered, or has
// not for long.
func TestPublishingWaitsForClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		told, taken := make(chan []mesh.ID, 10), make(chan struct{}, 10)
		p := New(Options{
			Publishing: func(ids []mesh.ID) func() {
				told <- ids
				return func() { taken <- struct{}{} }
			},
			View: meshview.Options{Sources: []string{"test"}},
		}, func(context.Context, string, *meshview.Proxy) error { return nil })
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- p.Run(ctx) }()
		defer func() {
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}()
		p.Builder.Set("test", api(false))
		p.Builder.Set("test", client())
		p.Builder.Synced("test")
		takenWithin := func(what string, began time.Time, least, most time.Duration) {
			t.Helper()
			<-taken
			if took := time.Since(began); took < least || took > most {
				t.Errorf("%s: taken after %s, want %s to %s", what, took, least, most)
			}
		}
		began := time.Now()
		<-told
		takenWithin("without clients", began, 0, 0)

		envoy := connectEnvoy(t, p, "default/web-1")
		clusters := envoy.receive()
		envoy.ack(clusters)
		envoy.send(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(resource.Endpoint), ResourceNamesSubscribe: []string{clusters.GetResources()[0].GetName()}})
		envoy.ack(envoy.receive())

		began = time.Now()
		p.Builder.Set("test", api(true))
		if ids := <-told; !slices.Equal(ids, []mesh.ID{"default/api-1"}) {
			t.Errorf("told of %v", ids)
		}
		endpoints := envoy.receive()
		const late = awaitLimit / 2
		time.Sleep(time.Until(began.Add(late)))
		envoy.ack(endpoints)
		takenWithin("with the answer", began, late, late+100*time.Millisecond)

		began = time.Now()
		p.Builder.Set("test", api(false))
		<-told
		envoy.receive()
		takenWithin("without an answer", began, awaitLimit, awaitLimit)
	})
}
