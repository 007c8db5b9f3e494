package generator

import (
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	matcherv3 "github.com/envoyproxy/go-control-plane/envoy/type/matcher/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// alpnMesh is offered by every client of the mesh, so that a listener can distinguish the mesh's TLS from the
// application's.
const alpnMesh = "sonde"

const (
	alpnHTTP2 = "h2"
	alpnHTTP1 = "http/1.1"
)

// noPeer is a SAN that no certificate has.
const noPeer = "spiffe://nobody"

// mutualTLS reports whether the proxies of the mesh use mTLS.
func mutualTLS(m *meshview.Mesh) bool { return m.Spec.Backend() != nil }

// serverSocket accepts only workloads of the mesh, by a certificate that the CA of the mesh has signed.
func serverSocket(src source, trustDomain string) *corev3.TransportSocket {
	return tlsSocket(&tlsv3.DownstreamTlsContext{
		CommonTlsContext: commonTLS(src, []string{alpnHTTP2, alpnHTTP1, alpnMesh}, uriSAN(&matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Prefix{Prefix: "spiffe://" + trustDomain + "/"},
		})),
		RequireClientCertificate: wrapperspb.Bool(true),
	})
}

// clientSocket accepts only servers with the identities of the service; if it has no identities, no server.
func clientSocket(src source, s *meshview.Service) *corev3.TransportSocket {
	identities := s.Identities
	if len(identities) == 0 {
		// An empty list of matchers would accept every certificate of the mesh.
		identities = []string{noPeer}
	}
	accepted := make([]*tlsv3.SubjectAltNameMatcher, 0, len(identities))
	for _, id := range identities {
		accepted = append(accepted, uriSAN(&matcherv3.StringMatcher{
			MatchPattern: &matcherv3.StringMatcher_Exact{Exact: id},
		}))
	}
	return tlsSocket(&tlsv3.UpstreamTlsContext{
		CommonTlsContext: commonTLS(src, offeredALPN(s.Protocol), accepted...),
		Sni:              s.Name,
	})
}

// offeredALPN returns the ALPN protocols that a client offers: alpnMesh, and the HTTP protocol for the server to
// select.
func offeredALPN(p mesh.Protocol) []string {
	switch p {
	case mesh.ProtocolHTTP:
		return []string{alpnMesh, alpnHTTP1}
	case mesh.ProtocolHTTP2, mesh.ProtocolGRPC:
		return []string{alpnMesh, alpnHTTP2}
	default:
		return []string{alpnMesh}
	}
}

// commonTLS combines the accepted names, which this package sets, with the roots, which come as a secret (Envoy:
// api-v3/extensions/transport_sockets/tls/v3/tls.proto, combined_validation_context).
func commonTLS(src source, alpn []string, peers ...*tlsv3.SubjectAltNameMatcher) *tlsv3.CommonTlsContext {
	return &tlsv3.CommonTlsContext{
		TlsParams:                      tls13Params(),
		TlsCertificateSdsSecretConfigs: []*tlsv3.SdsSecretConfig{sdsSecret(src, mesh.SecretIdentity, mesh.FileIdentity)},
		ValidationContextType: &tlsv3.CommonTlsContext_CombinedValidationContext{
			CombinedValidationContext: &tlsv3.CommonTlsContext_CombinedCertificateValidationContext{
				DefaultValidationContext:         &tlsv3.CertificateValidationContext{MatchTypedSubjectAltNames: peers},
				ValidationContextSdsSecretConfig: sdsSecret(src, mesh.SecretCA, mesh.FileCA),
			},
		},
		AlpnProtocols: alpn,
	}
}

// tls13Params allow only TLS 1.3, since both ends are Sonde's proxies.
func tls13Params() *tlsv3.TlsParameters {
	return &tlsv3.TlsParameters{
		TlsMinimumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
		TlsMaximumProtocolVersion: tlsv3.TlsParameters_TLSv1_3,
	}
}

// sdsSecret refers to a secret by name: in the agent's file, which Envoy watches, or in the same static configuration
// (Envoy: configuration/security/secret).
func sdsSecret(src source, name, path string) *tlsv3.SdsSecretConfig {
	if src == static {
		return &tlsv3.SdsSecretConfig{Name: name}
	}
	return &tlsv3.SdsSecretConfig{Name: name, SdsConfig: fileConfigSource(path)}
}

func uriSAN(m *matcherv3.StringMatcher) *tlsv3.SubjectAltNameMatcher {
	return &tlsv3.SubjectAltNameMatcher{SanType: tlsv3.SubjectAltNameMatcher_URI, Matcher: m}
}

func tlsSocket(context proto.Message) *corev3.TransportSocket {
	return &corev3.TransportSocket{
		Name:       "envoy.transport_sockets.tls",
		ConfigType: &corev3.TransportSocket_TypedConfig{TypedConfig: resource.Any(context)},
	}
}
