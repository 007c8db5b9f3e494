// Package grpcxds tests the ADS server with gRPC-Go's own xDS client, which is independent of our code: it resolves and
// calls services.
package grpcxds

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	routerv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/router/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/xds"
	"google.golang.org/grpc/xds/bootstrap"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	sondexds "github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	node = "default/client"
	host = "10.0.0.1" // of all servers
)

// source has the resources of the only proxy.
type source struct{ desired resource.Desired }

func (s *source) Attach(string, resource.Metadata) resource.Desired { return s.desired }
func (s *source) Detach(string)                                     {}

func TestResolveAndCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := virtual.NewNetwork()
		first, second := backend(t, n, "first"), backend(t, n, "second")
		set := resource.NewSet(service(t, "api", first)...)
		// Without a drain time gRPC-Go may lose the old cluster before it uses the new routes that it has already ACKed.
		ads := sondexds.NewServer(sondexds.Options{DrainTime: time.Second}, &source{desired: resource.Desired{Shared: set}}, func(_ context.Context, id string) error {
			if id != node {
				return fmt.Errorf("unexpected node %q", id)
			}
			return nil
		})
		address := serve(t, n, func(g *grpc.Server) { ads.Register(g) }, sondexds.ServerOptions()...)
		t.Cleanup(ads.Wait)
		conn := dial(t, n, address)

		until(t, "the first backend answers", func() bool { return call(t, conn) == "first" })

		// The service's endpoints change.
		set = set.With([]*resource.Resource{assignment(t, "api", second)}, nil)
		ads.Publish(map[string]resource.Desired{node: {Shared: set}})
		until(t, "the second backend answers", func() bool { return call(t, conn) == "second" })

		// The cluster and the route change, and the old cluster is removed. No call fails, except for calls that gRPC-Go
		// itself loses (see call).
		put := append(service(t, "other", first), route(t, "api", "other"))
		next := set.With(put, []resource.Name{{Type: resource.Cluster, Name: "api"}, {Type: resource.Endpoint, Name: "api"}})
		ads.Publish(map[string]resource.Desired{node: {Shared: next}})
		until(t, "calls go to the other cluster", func() bool { return call(t, conn) == "first" })
		time.Sleep(time.Minute) // the old cluster is removed
		if got := call(t, conn); got != "first" {
			t.Errorf("after the removal of the old cluster, %q answers, want first", got)
		}

		var nacks, types int
		for _, s := range ads.Status() {
			for _, st := range s.Types {
				nacks += len(st.NACKs)
				types++
			}
		}
		if nacks != 0 || types != 4 {
			t.Errorf("Status() has %d types and %d NACKs, want 4 and 0: %+v", types, nacks, ads.Status())
		}
	})
}

func TestNACK(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := virtual.NewNetwork()
		first, second := backend(t, n, "first"), backend(t, n, "second")
		set := resource.NewSet(service(t, "api", first)...)
		ads := sondexds.NewServer(sondexds.Options{}, &source{desired: resource.Desired{Shared: set}}, func(context.Context, string) error { return nil })
		address := serve(t, n, func(g *grpc.Server) { ads.Register(g) }, sondexds.ServerOptions()...)
		t.Cleanup(ads.Wait)
		conn := dial(t, n, address)
		until(t, "the backend answers", func() bool { return call(t, conn) == "first" })

		// gRPC refuses two localities with the same priority and name.
		bad := endpoints("api", first)
		bad.Endpoints = append(bad.Endpoints, endpoints("api", second).GetEndpoints()...)
		ads.Publish(map[string]resource.Desired{node: {Shared: set.With([]*resource.Resource{encode(t, "api", bad)}, nil)}})
		until(t, "the NACK is reported", func() bool {
			for _, s := range ads.Status() {
				for _, st := range s.Types {
					if st.Type == resource.Endpoint && len(st.NACKs) == 1 && st.NACKs[0].Name == "api" {
						return true
					}
				}
			}
			return false
		})
		if got := call(t, conn); got != "first" {
			t.Errorf("after the NACK, %q answers, want the last good one", got)
		}
		ads.Publish(map[string]resource.Desired{node: {Shared: set.With([]*resource.Resource{assignment(t, "api", second)}, nil)}})
		until(t, "the fix arrives", func() bool { return call(t, conn) == "second" })
	})
}

// backend answers health checks, with its name in a header.
func backend(t *testing.T, n *virtual.Network, name string) netip.AddrPort {
	t.Helper()
	named := grpc.UnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		if err := grpc.SetHeader(ctx, metadata.Pairs("backend", name)); err != nil {
			return nil, err
		}
		return handler(ctx, req)
	})
	return serve(t, n, func(g *grpc.Server) { healthpb.RegisterHealthServer(g, health.NewServer()) }, named)
}

func serve(t *testing.T, n *virtual.Network, register func(*grpc.Server), o ...grpc.ServerOption) netip.AddrPort {
	t.Helper()
	l, err := n.Listen(t.Context(), "tcp", host+":0")
	if err != nil {
		t.Fatal(err)
	}
	g := grpc.NewServer(o...)
	register(g)
	done := make(chan error, 1)
	go func() { done <- g.Serve(l) }()
	t.Cleanup(func() {
		g.Stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return netip.MustParseAddrPort(l.Addr().String())
}

// memory are credentials for gRPC-Go's xDS client. Their configuration is the name of the test's network, to which they
// connect the client.
type memory struct{ networks sync.Map }

var inMemory = &memory{}

func init() { bootstrap.RegisterChannelCredentials(inMemory) }

func (m *memory) Name() string { return "memory" }

func (m *memory) Build(config json.RawMessage) (credentials.Bundle, func(), error) {
	var name string
	if err := json.Unmarshal(config, &name); err != nil {
		return nil, nil, err
	}
	n, known := m.networks.Load(name)
	if !known {
		return nil, nil, fmt.Errorf("network %q is unknown", name)
	}
	return bundle{insecure.NewBundle(), n.(*virtual.Network)}, func() {}, nil
}

type bundle struct {
	credentials.Bundle
	network *virtual.Network
}

// DialOptions is called by gRPC-Go.
func (b bundle) DialOptions() []grpc.DialOption { return []grpc.DialOption{dialer(b.network)} }

func dialer(n *virtual.Network) grpc.DialOption {
	return grpc.WithContextDialer(func(ctx context.Context, address string) (net.Conn, error) {
		return n.DialFrom("10.0.0.2")(ctx, "tcp", address)
	})
}

// dial returns a connection to the service api, whose address comes from the ADS server.
func dial(t *testing.T, n *virtual.Network, ads netip.AddrPort) *grpc.ClientConn {
	t.Helper()
	inMemory.networks.Store(t.Name(), n)
	resolver, err := xds.NewXDSResolverWithConfigForTesting(fmt.Appendf(nil, `{
		"xds_servers": [{"server_uri": "passthrough:///%s", "channel_creds": [{"type": "memory", "config": %q}], "server_features": ["xds_v3"]}],
		"node": {"id": %q}
	}`, ads, t.Name(), node))
	if err != nil {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("xds:///api", grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithResolvers(resolver), dialer(n))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn
}

// call returns the name of the backend that answered, or "" if gRPC-Go was between two configurations. Whatever the
// server sends, gRPC-Go uses new routes a moment before its balancer knows their clusters
// (ClientConn.updateResolverStateAndUnlock). Any other failure fails the test.
func call(t *testing.T, conn *grpc.ClientConn) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	var header metadata.MD
	_, err := healthpb.NewHealthClient(conn).Check(ctx, &healthpb.HealthCheckRequest{}, grpc.WaitForReady(false), grpc.Header(&header))
	if status.Code(err) == codes.Unavailable && strings.Contains(status.Convert(err).Message(), "unknown cluster selected for RPC") {
		return ""
	}
	if err != nil {
		t.Fatalf("call failed: %v", err)
	}
	if names := header.Get("backend"); len(names) == 1 {
		return names[0]
	}
	return ""
}

// until calls done while messages are sent, which take some time.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 1000 {
		if done() {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("not within a second: %s", what)
}

func encode(t *testing.T, name string, m proto.Message) *resource.Resource {
	t.Helper()
	r, err := resource.Encode(name, m)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// service returns all resources that a gRPC client needs for xds:///name.
func service(t *testing.T, name string, at netip.AddrPort) []*resource.Resource {
	t.Helper()
	ads := &corev3.ConfigSource{ResourceApiVersion: corev3.ApiVersion_V3, ConfigSourceSpecifier: &corev3.ConfigSource_Ads{Ads: &corev3.AggregatedConfigSource{}}}
	return []*resource.Resource{
		encode(t, name, &listenerv3.Listener{Name: name, ApiListener: &listenerv3.ApiListener{ApiListener: resource.Any(&hcmv3.HttpConnectionManager{
			StatPrefix:     name,
			RouteSpecifier: &hcmv3.HttpConnectionManager_Rds{Rds: &hcmv3.Rds{RouteConfigName: name, ConfigSource: ads}},
			HttpFilters: []*hcmv3.HttpFilter{{
				Name: "router", ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: resource.Any(&routerv3.Router{})},
			}},
		})}}),
		route(t, name, name),
		encode(t, name, &clusterv3.Cluster{
			Name: name, ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_EDS},
			EdsClusterConfig: &clusterv3.Cluster_EdsClusterConfig{EdsConfig: ads},
		}),
		assignment(t, name, at),
	}
}

func route(t *testing.T, name, cluster string) *resource.Resource {
	t.Helper()
	return encode(t, name, &routev3.RouteConfiguration{Name: name, VirtualHosts: []*routev3.VirtualHost{{
		Name: name, Domains: []string{"*"},
		Routes: []*routev3.Route{{
			Match:  &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: ""}},
			Action: &routev3.Route_Route{Route: &routev3.RouteAction{ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: cluster}}},
		}},
	}}})
}

func assignment(t *testing.T, name string, at netip.AddrPort) *resource.Resource {
	t.Helper()
	return encode(t, name, endpoints(name, at))
}

func endpoints(name string, at netip.AddrPort) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{{
		Locality: &corev3.Locality{Zone: "z"}, LoadBalancingWeight: wrapperspb.UInt32(1),
		LbEndpoints: []*endpointv3.LbEndpoint{{HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{
			Address: &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
				Address: at.Addr().String(), PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(at.Port())},
			}}},
		}}}},
	}}}
}
