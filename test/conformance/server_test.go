package conformance

import (
	"context"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/internal/testing/grpctest"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// node is the only proxy.
const node = "default/client"

// server is an ADS server with the resources of the proxy.
type server struct {
	t      *testing.T
	xds    *xds.Server
	conn   *grpc.ClientConn
	labels map[string]string // name@version in a script, by the server's resource and version

	mu   sync.Mutex
	want *resource.Set
}

var _ xds.Source = (*server)(nil)

// Attach implements xds.Source.
func (s *server) Attach(string, resource.Metadata) resource.Desired {
	s.mu.Lock()
	defer s.mu.Unlock()
	return resource.Desired{Shared: s.want}
}

// Detach implements xds.Source.
func (s *server) Detach(string) {}

func startServer(t *testing.T) *server {
	t.Helper()
	s := &server{t: t, want: resource.NewSet(), labels: map[string]string{}}
	s.xds = xds.NewServer(xds.Options{}, s, func(context.Context, string) error { return nil })
	g := grpc.NewServer(xds.ServerOptions()...)
	s.xds.Register(g)
	t.Cleanup(s.xds.Wait)
	s.conn = grpctest.Connect(t, g)
	return s
}

// publish makes text, for instance "A@1 B@2", all resources of a type that the proxy should have.
func (s *server) publish(kind resource.Type, text string) {
	s.t.Helper()
	put := s.resources(kind, text)
	var remove []resource.Name
	for _, old := range s.want.Of(kind) {
		if !slices.ContainsFunc(put, func(r *resource.Resource) bool { return r.Name == old.Name }) {
			remove = append(remove, old.Key())
		}
	}
	s.mu.Lock()
	s.want = s.want.With(put, remove)
	now := resource.Desired{Shared: s.want}
	s.mu.Unlock()
	s.xds.Publish(map[string]resource.Desired{node: now})
}

func (s *server) resources(kind resource.Type, text string) []*resource.Resource {
	s.t.Helper()
	var list []*resource.Resource
	for label := range strings.FieldsSeq(text) {
		name, version, _ := strings.Cut(label, "@")
		r, err := resource.Encode(name, message(kind, name, version))
		if err != nil {
			s.t.Fatal(err)
		}
		s.labels[name+" "+r.Version] = label
		list = append(list, r)
	}
	return list
}

// label returns name@version as in a script. An assignment without endpoints has no version: it is sent for an
// assignment that does not exist in the state of the world.
func (s *server) label(name, version string) string {
	if label := s.labels[name+" "+version]; label != "" {
		return label
	}
	return name + "@"
}

// message returns a small resource whose content depends on the version.
func message(kind resource.Type, name, version string) proto.Message {
	switch kind {
	case resource.Cluster:
		return &clusterv3.Cluster{Name: name, AltStatName: version}
	case resource.Endpoint:
		return &endpointv3.ClusterLoadAssignment{ClusterName: name, Endpoints: []*endpointv3.LocalityLbEndpoints{
			{Locality: &corev3.Locality{Zone: version}},
		}}
	case resource.Listener:
		return &listenerv3.Listener{Name: name, StatPrefix: version}
	case resource.Route:
		return &routev3.RouteConfiguration{Name: name, InternalOnlyHeaders: []string{version}}
	}
	panic("no message of type " + strconv.Quote(string(kind)))
}
