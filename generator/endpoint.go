package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/meshview"
)

// Endpoint metadata for the Cluster's transport_socket_matches. It describes the endpoint, not which protocol to use:
// that depends on the mode of the mesh, so a changed mode changes no assignment.
const (
	socketMatchFilter = "envoy.transport_socket_match"
	socketMatchKey    = "sonde"
	matchMTLS         = "mtls"         // a sidecar
	matchServerFirst  = "server-first" // a sidecar that only accepts plaintext in PERMISSIVE, see mesh.Inbound.ServerFirst
)

// LoadAssignment returns the endpoints that get traffic, possibly none. Other endpoints are left out instead of marked
// unhealthy, since Envoy sends to unhealthy endpoints if there is no other (Envoy:
// intro/arch_overview/upstream/load_balancing/panic_threshold).
func LoadAssignment(s *meshview.Service) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: s.Name}
	serving := s.Serving()
	if len(serving) == 0 {
		return a
	}
	endpoints := make([]*endpointv3.LbEndpoint, 0, len(serving))
	for _, e := range serving {
		endpoints = append(endpoints, lbEndpoint(socketAddress(e.Address), endpointMetadata(s, e)))
	}
	a.Endpoints = []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}}
	return a
}

func endpointMetadata(s *meshview.Service, e meshview.Endpoint) *corev3.Metadata {
	metadata := map[string]*structpb.Struct{}
	if e.Sidecar {
		answers := matchMTLS
		if e.ServerFirst {
			answers = matchServerFirst
		}
		metadata[socketMatchFilter] = socketMatch(answers)
	}
	if s.Headless {
		metadata[subsetFilter] = subsetOf(e.Address)
	}
	if len(metadata) == 0 {
		return nil
	}
	return &corev3.Metadata{FilterMetadata: metadata}
}

func socketMatch(value string) *structpb.Struct {
	return &structpb.Struct{Fields: map[string]*structpb.Value{socketMatchKey: structpb.NewStringValue(value)}}
}

func lbEndpoint(address *corev3.Address, metadata *corev3.Metadata) *endpointv3.LbEndpoint {
	return &endpointv3.LbEndpoint{
		HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: address}},
		Metadata:       metadata,
	}
}

// assignment returns the assignment of a cluster with one endpoint.
func assignment(cluster string, e *endpointv3.LbEndpoint) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: cluster,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{e},
		}},
	}
}
