package schedule

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// thing is a resource as a client reads it: its name, its hash, and what it refers to.
type thing struct {
	key       resource.Name
	version   string
	endpoints string   // the assignment that a cluster asks for
	routes    []string // the routes that a listener asks for
	clusters  []string // the clusters of a listener or a route
}

// library decodes each resource once.
type library struct {
	mu    sync.Mutex
	known map[string]*thing
	wrong func(format string, args ...any)
}

func newLibrary(wrong func(string, ...any)) *library {
	return &library{known: map[string]*thing{}, wrong: wrong}
}

// look returns the thing in body, which must have that name and version unless these are empty.
func (l *library) look(body *anypb.Any, name, version string) *thing {
	l.mu.Lock()
	defer l.mu.Unlock()
	text := body.GetTypeUrl() + string(body.GetValue())
	t := l.known[text]
	if t == nil {
		t = &thing{key: resource.Name{Type: resource.Type(body.GetTypeUrl())}}
		sum := sha256.Sum256(body.GetValue())
		t.version = hex.EncodeToString(sum[:8])
		if err := t.read(body); err != nil {
			l.wrong("a resource cannot be read: %v", err)
		}
		l.known[text] = t
	}
	if name != "" && (name != t.key.Name || version != t.version) {
		l.wrong("%s %q comes as %q of version %s, and is %s", t.key.Type.Short(), t.key.Name, name, version, t.version)
	}
	return t
}

func (t *thing) read(body *anypb.Any) error {
	m, err := body.UnmarshalNew()
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *clusterv3.Cluster:
		t.key.Name = m.GetName()
		if m.GetType() == clusterv3.Cluster_EDS {
			t.endpoints = cmp.Or(m.GetEdsClusterConfig().GetServiceName(), m.GetName())
		}
	case *endpointv3.ClusterLoadAssignment:
		t.key.Name = m.GetClusterName()
	case *routev3.RouteConfiguration:
		t.key.Name = m.GetName()
		t.route(m)
	case *listenerv3.Listener:
		t.key.Name = m.GetName()
		for _, chain := range append(m.GetFilterChains(), m.GetDefaultFilterChain()) {
			for _, filter := range chain.GetFilters() {
				if err := t.filter(filter); err != nil {
					return err
				}
			}
		}
	default:
		return fmt.Errorf("%s is not of a type that is served", body.GetTypeUrl())
	}
	return nil
}

func (t *thing) filter(f *listenerv3.Filter) error {
	config := f.GetTypedConfig()
	tcp, http := &tcpv3.TcpProxy{}, &hcmv3.HttpConnectionManager{}
	switch {
	case config.MessageIs(tcp):
		if err := proto.Unmarshal(config.GetValue(), tcp); err != nil {
			return err
		}
		t.clusters = append(t.clusters, tcp.GetCluster())
	case config.MessageIs(http):
		if err := proto.Unmarshal(config.GetValue(), http); err != nil {
			return err
		}
		if rds := http.GetRds(); rds != nil {
			t.routes = append(t.routes, rds.GetRouteConfigName())
		}
		t.route(http.GetRouteConfig())
	}
	return nil
}

func (t *thing) route(r *routev3.RouteConfiguration) {
	for _, host := range r.GetVirtualHosts() {
		for _, one := range host.GetRoutes() {
			if name := one.GetRoute().GetCluster(); name != "" {
				t.clusters = append(t.clusters, name)
			}
		}
	}
}

// needed returns the versions of all that a client ends up with: clusters and listeners, and the endpoints and routes that
// they ask for.
func (l *library) needed(d resource.Desired) map[resource.Name]string {
	all := map[resource.Name]string{}
	add := func(t resource.Type, name string) *thing {
		r := d.Get(resource.Name{Type: t, Name: name})
		if r == nil {
			l.wrong("%s %q is asked for, and is not there", t.Short(), name)
			return nil
		}
		read := l.look(r.Body, r.Name, r.Version)
		all[read.key] = read.version
		return read
	}
	for _, r := range d.Of(resource.Cluster) {
		if c := add(resource.Cluster, r.Name); c.endpoints != "" {
			add(resource.Endpoint, c.endpoints)
		}
	}
	for _, r := range d.Of(resource.Listener) {
		for _, name := range add(resource.Listener, r.Name).routes {
			add(resource.Route, name)
		}
	}
	return all
}
