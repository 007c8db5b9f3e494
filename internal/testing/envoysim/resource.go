package envoysim

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

// Resource is a decoded resource and what it refers to.
type Resource struct {
	Key resource.Name
	// Version is the hash of Body, as in Sonde's versions: the state of the world has no version per resource.
	Version string
	Body    *anypb.Any
	// Endpoints is the assignment that a cluster requests, "" if none.
	Endpoints string
	// Routes are the route configurations that a listener requests.
	Routes []string
	// Clusters are the targets of a listener or a route configuration.
	Clusters []string
}

// Decoder decodes each resource once. Its zero value is usable, and is safe for concurrent use.
type Decoder struct {
	mu    sync.Mutex
	known map[string]*Resource
}

// Decode returns the resource in body. It returns an error if the name or version differs, unless they are empty.
func (d *Decoder) Decode(body *anypb.Any, name, version string) (*Resource, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.known == nil {
		d.known = map[string]*Resource{}
	}
	text := body.GetTypeUrl() + string(body.GetValue())
	r := d.known[text]
	if r == nil {
		var err error
		if r, err = Decode(body); err != nil {
			return nil, err
		}
		d.known[text] = r
	}
	if name != "" && (name != r.Key.Name || version != r.Version) {
		return nil, fmt.Errorf("%s %q was sent as %q of version %s, want version %s",
			r.Key.Type.Short(), r.Key.Name, name, version, r.Version)
	}
	return r, nil
}

// Decode returns the resource in body.
func Decode(body *anypb.Any) (*Resource, error) {
	sum := sha256.Sum256(body.GetValue())
	r := &Resource{Key: resource.Name{Type: resource.Type(body.GetTypeUrl())}, Version: hex.EncodeToString(sum[:8]),
		Body: body}
	if err := r.decode(); err != nil {
		return nil, fmt.Errorf("decode %s: %w", r.Key.Type.Short(), err)
	}
	return r, nil
}

func (r *Resource) decode() error {
	m, err := r.Body.UnmarshalNew()
	if err != nil {
		return err
	}
	switch m := m.(type) {
	case *clusterv3.Cluster:
		r.Key.Name = m.GetName()
		if m.GetType() == clusterv3.Cluster_EDS {
			r.Endpoints = cmp.Or(m.GetEdsClusterConfig().GetServiceName(), m.GetName())
		}
	case *endpointv3.ClusterLoadAssignment:
		r.Key.Name = m.GetClusterName()
	case *routev3.RouteConfiguration:
		r.Key.Name = m.GetName()
		r.route(m)
	case *listenerv3.Listener:
		r.Key.Name = m.GetName()
		for _, chain := range append(m.GetFilterChains(), m.GetDefaultFilterChain()) {
			for _, filter := range chain.GetFilters() {
				if err := r.filter(filter.GetTypedConfig()); err != nil {
					return err
				}
			}
		}
	default:
		return fmt.Errorf("%s is not of a type that is served", r.Body.GetTypeUrl())
	}
	return nil
}

func (r *Resource) filter(config *anypb.Any) error {
	tcp, http := &tcpv3.TcpProxy{}, &hcmv3.HttpConnectionManager{}
	switch {
	case config.MessageIs(tcp):
		if err := proto.Unmarshal(config.GetValue(), tcp); err != nil {
			return err
		}
		r.Clusters = append(r.Clusters, tcp.GetCluster())
	case config.MessageIs(http):
		if err := proto.Unmarshal(config.GetValue(), http); err != nil {
			return err
		}
		if rds := http.GetRds(); rds != nil {
			r.Routes = append(r.Routes, rds.GetRouteConfigName())
		}
		r.route(http.GetRouteConfig())
	}
	return nil
}

func (r *Resource) route(m *routev3.RouteConfiguration) {
	for _, host := range m.GetVirtualHosts() {
		for _, one := range host.GetRoutes() {
			if name := one.GetRoute().GetCluster(); name != "" {
				r.Clusters = append(r.Clusters, name)
			}
		}
	}
}
