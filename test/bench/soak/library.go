package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	tcpv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/tcp_proxy/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// library knows to which clusters each version of a listener or route sends. It also checks that a version always has the
// same bytes.
type library struct {
	mu    sync.RWMutex
	known map[resourceKey][]string
}

type resourceKey struct {
	kind          resource.Type
	name, version string
}

// see is called for each resource that any proxy gets.
func (l *library) see(t resource.Type, name, version, body []byte) error {
	sum := sha256.Sum256(body)
	if hash := hex.EncodeToString(sum[:]); len(version) == 0 || hash[:len(version)] != string(version) {
		return fmt.Errorf("the version is %q, the hash of the bytes %s", version, hash)
	}
	key := resourceKey{t, string(name), string(version)}
	l.mu.RLock()
	_, known := l.known[key]
	l.mu.RUnlock()
	if known {
		return nil
	}
	var clusters []string
	var err error
	switch t {
	case resource.Listener:
		clusters, err = clustersOfListener(body)
	case resource.Route:
		var route routev3.RouteConfiguration
		err = proto.Unmarshal(body, &route)
		clusters = clustersOfRoute(&route)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.known[key] = clusters
	return err
}

// clusters returns the clusters that a resource sends to.
func (l *library) clusters(t resource.Type, name, version string) []string {
	l.mu.RLock()
	defer l.mu.RUnlock()
	return l.known[resourceKey{t, name, version}]
}

func clustersOfListener(body []byte) ([]string, error) {
	var listener listenerv3.Listener
	if err := proto.Unmarshal(body, &listener); err != nil {
		return nil, err
	}
	var clusters []string
	for _, chain := range append(listener.GetFilterChains(), listener.GetDefaultFilterChain()) {
		for _, filter := range chain.GetFilters() {
			tcp, http := &tcpv3.TcpProxy{}, &hcmv3.HttpConnectionManager{}
			config := filter.GetTypedConfig()
			switch {
			case config.MessageIs(tcp):
				if err := config.UnmarshalTo(tcp); err != nil {
					return nil, err
				}
				clusters = append(clusters, tcp.GetCluster())
			case config.MessageIs(http):
				if err := config.UnmarshalTo(http); err != nil {
					return nil, err
				}
				clusters = append(clusters, clustersOfRoute(http.GetRouteConfig())...)
			}
		}
	}
	return clusters, nil
}

func clustersOfRoute(r *routev3.RouteConfiguration) []string {
	var clusters []string
	for _, host := range r.GetVirtualHosts() {
		for _, route := range host.GetRoutes() {
			if name := route.GetRoute().GetCluster(); name != "" {
				clusters = append(clusters, name)
			}
		}
	}
	return clusters
}
