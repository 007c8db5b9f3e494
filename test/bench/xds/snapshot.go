package main

import (
	"context"
	"strconv"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/envoyproxy/go-control-plane/pkg/cache/types"
	cachev3 "github.com/envoyproxy/go-control-plane/pkg/cache/v3"
	serverv3 "github.com/envoyproxy/go-control-plane/pkg/server/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/controlplane"
	"github.com/sonde-mesh/sonde/test/bench/sondecp"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// everybody has all proxies share one node of the cache.
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

func serveSnapshot(ctx context.Context, id *sondecp.Identity, r roleOptions) error {
	p, err := readPayload(r.payload)
	if err != nil {
		return err
	}
	s := &snapshots{
		cache:     cachev3.NewSnapshotCache(true, everybody{}, nil),
		resources: map[resource.Type][]types.Resource{}, endpoints: map[string]int{}, payload: p, forms: r.topology.forms(),
	}
	for t, list := range p.All {
		for i, e := range list {
			m, err := decode(t, e)
			if err != nil {
				return err
			}
			s.resources[t] = append(s.resources[t], m)
			if t == resource.Endpoint {
				s.endpoints[e.Name] = i
			}
		}
	}
	if err := s.publish(ctx); err != nil {
		return err
	}
	server := controlplane.NewServer(id.Credentials, 0)
	discoveryv3.RegisterAggregatedDiscoveryServiceServer(server, serverv3.NewServer(ctx, s.cache, nil))
	return serveSubject(ctx, server, func(service int) error { return s.change(ctx, service) })
}

func decode(t resource.Type, e entry) (types.Resource, error) {
	return (&anypb.Any{TypeUrl: string(t), Value: e.Body}).UnmarshalNew()
}

func (s *snapshots) change(ctx context.Context, service int) error {
	s.forms[service] = !s.forms[service]
	e := s.payload.of(service, s.forms)
	m, err := decode(resource.Endpoint, e)
	if err != nil {
		return err
	}
	s.resources[resource.Endpoint][s.endpoints[e.Name]] = m
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
