package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/sonde-mesh/sonde/meshview"
)

// Endpoint metadata that the Cluster's transport_socket_matches read. It says what answers at the address, not what to
// speak: that depends on the mesh's mode, and a changed mode then changes no assignment.
const (
	socketMatchFilter = "envoy.transport_socket_match"
	socketMatchKey    = "sonde"
	answersMTLS       = "mtls"         // a sidecar
	answersFirst      = "server-first" // a sidecar that in PERMISSIVE takes plain text alone, see mesh.Inbound.ServerFirst
)

// LoadAssignment holds the endpoints that get traffic. Envoy sends to unhealthy ones where there is no other, so the
// others are left out; one without endpoints is the answer where there is none.
func LoadAssignment(s *meshview.Service) *endpointv3.ClusterLoadAssignment {
	a := &endpointv3.ClusterLoadAssignment{ClusterName: s.Name}
	serving := s.Serving()
	if len(serving) == 0 {
		return a
	}
	endpoints := make([]*endpointv3.LbEndpoint, 0, len(serving))
	for _, e := range serving {
		endpoints = append(endpoints, lbEndpoint(socketAddress(e.Address), endpointMetadata(e)))
	}
	a.Endpoints = []*endpointv3.LocalityLbEndpoints{{LbEndpoints: endpoints}}
	return a
}

func endpointMetadata(e meshview.Endpoint) *corev3.Metadata {
	if !e.Sidecar {
		return nil
	}
	answers := answersMTLS
	if e.ServerFirst {
		answers = answersFirst
	}
	return &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{socketMatchFilter: socketMatch(answers)}}
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

// assignment of a cluster with one address.
func assignment(cluster string, address *corev3.Address) *endpointv3.ClusterLoadAssignment {
	return &endpointv3.ClusterLoadAssignment{
		ClusterName: cluster,
		Endpoints: []*endpointv3.LocalityLbEndpoints{{
			LbEndpoints: []*endpointv3.LbEndpoint{lbEndpoint(address, nil)},
		}},
	}
}
