package generator

import (
	"net/netip"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/types/known/structpb"
)

// A headless service has one cluster, in which each endpoint's address is a separate subset. The listener at an
// endpoint's address selects it (Envoy: intro/arch_overview/upstream/load_balancing/subsets).
const (
	subsetFilter = "envoy.lb"
	subsetKey    = "address"
)

func subsetOf(at netip.AddrPort) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{subsetKey: structpb.NewStringValue(at.String())}}
}

// selectEndpoint returns the metadata by which a route or TCP proxy selects one endpoint.
func selectEndpoint(at netip.AddrPort) *corev3.Metadata {
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{subsetFilter: subsetOf(at)}}
}

// subsetByAddress has no fallback: a request for one endpoint must not reach another one.
func subsetByAddress() *clusterv3.Cluster_LbSubsetConfig {
	return &clusterv3.Cluster_LbSubsetConfig{
		FallbackPolicy:  clusterv3.Cluster_LbSubsetConfig_NO_FALLBACK,
		SubsetSelectors: []*clusterv3.Cluster_LbSubsetConfig_LbSubsetSelector{{Keys: []string{subsetKey}}},
	}
}
