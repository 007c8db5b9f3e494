package featuretest

import (
	"net"
	"slices"
	"strconv"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
)

func addresses(m *endpointv3.ClusterLoadAssignment) []string {
	var all []string
	for _, locality := range m.GetEndpoints() {
		for _, e := range locality.GetLbEndpoints() {
			at := e.GetEndpoint().GetAddress().GetSocketAddress()
			one := net.JoinHostPort(at.GetAddress(), strconv.FormatUint(uint64(at.GetPortValue()), 10))
			match := e.GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()
			if match["sonde"].GetStringValue() == "mtls" {
				one += "+mtls"
			}
			all = append(all, one)
		}
	}
	return all
}

// identities returns the SPIFFE IDs that the cluster accepts in mTLS.
func identities(m *clusterv3.Cluster) []string {
	var all []string
	for _, match := range m.GetTransportSocketMatches() {
		upstream := &tlsv3.UpstreamTlsContext{}
		if match.GetTransportSocket().GetTypedConfig().UnmarshalTo(upstream) != nil {
			continue
		}
		validation := upstream.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext()
		for _, san := range validation.GetMatchTypedSubjectAltNames() {
			all = append(all, san.GetMatcher().GetExact())
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}
