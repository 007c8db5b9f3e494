package xds

import (
	"context"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// everybody makes all proxies share one node of the cache.
type everybody struct{}

// ID implements cachev3.NodeHash.
func (everybody) ID(*corev3.Node) string { return "all" }

// snapshots is a plain go-control-plane cache with one snapshot for all.
type snapshots struct {
	cache     cachev3.SnapshotCache
	version   int
	resources map[resource.Type][]types.Resource
	endpoints map[string]int // index of each in the list
	payload   *payload
	forms     forms
}

func serveSnapshot(ctx context.Context, id *sondecp.Identity, w topology) error {
	p, err := generate(w)
	if err != nil {
		return err
	}
	s := &snapshots{
		cache:     cachev3.NewSnapshotCache(true, everybody{}, nil),
		resources: map[resource.Type][]types.Resource{}, endpoints: map[string]int{}, payload: p, forms: w.forms(),
	}
	for t, all := range p.all {
		for i, r := range all {
			m, err := r.Body.UnmarshalNew()
			if err != nil {
				return err
			}
			s.resources[t] = append(s.resources[t], m)
			if t == resource.Endpoint {
				s.endpoints[r.Name] = i
			}
		}
	}
	if err := s.publish(ctx); err != nil {
		return err
	}
	server := controlplane.NewServer(id.Credentials, 0)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, s.cache, nil))
	return serve(ctx, server, func(service int) error { return s.change(ctx, service) })
}

func (s *snapshots) change(ctx context.Context, service int) error {
	s.forms[service] = !s.forms[service]
	r := s.payload.in(service, s.forms)
	m, err := r.Body.UnmarshalNew()
	if err != nil {
		return err
	}
	s.resources[resource.Endpoint][s.endpoints[r.Name]] = m
	return s.publish(ctx)
}

func (s *snapshots) publish(ctx context.Context) error {
	s.version++
	all := map[string][]types.Resource{}
	for t, list := range s.resources {
		all[string(t)] = list
	}
	snapshot, err := cachev3.NewSnapshot(strconv.Itoa(s.version), all)
	if err != nil {
		return err
	}
	return s.cache.SetSnapshot(ctx, "all", snapshot)
}
