package generator

import (
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// predicate matches connections for which a listener filter is disabled.
type predicate = listenerv3.ListenerFilterChainMatchPredicate

func destinationPort(port uint32) *predicate {
	return &predicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_DestinationPortRange{
		DestinationPortRange: &typev3.Int32Range{Start: int32(port), End: int32(port) + 1},
	}}
}

// anyOf matches if one of p matches. It returns nil if p is empty; Envoy's OrMatch needs at least two rules.
func anyOf(p []*predicate) *predicate {
	switch len(p) {
	case 0:
		return nil
	case 1:
		return p[0]
	}
	return &predicate{Rule: &listenerv3.ListenerFilterChainMatchPredicate_OrMatch{
		OrMatch: &listenerv3.ListenerFilterChainMatchPredicate_MatchSet{Rules: p},
	}}
}
