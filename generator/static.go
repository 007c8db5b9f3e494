package generator

import (
	"slices"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// StaticOptions are the inputs of a static configuration.
type StaticOptions struct {
	Mesh  *meshview.Mesh
	Proxy *meshview.Proxy
	// Memory is as in BootstrapOptions.
	Memory uint64
	// TrustDomain is the suffix of all trust domains.
	TrustDomain string
	// Certificate (the chain, leaf first), Key and CA are PEM. They are not needed if mTLS is off.
	Certificate, Key, CA []byte
}

// Static returns the whole configuration of one proxy as one bootstrap, including endpoints, routes and secrets. It
// needs neither a control plane nor files.
func Static(o StaticOptions) *bootstrapv3.Bootstrap {
	b := baseBootstrap(o.Proxy.ID(), mesh.WorkloadText(o.Proxy.Dataplane.SPIFFEPath()), o.Memory)
	b.StaticResources = &bootstrapv3.Bootstrap_StaticResources{
		Listeners: staticListeners(o),
		Clusters:  staticClusters(o),
	}
	if mutualTLS(o.Mesh) {
		b.StaticResources.Secrets = staticSecrets(o)
	}
	return b
}

func staticListeners(o StaticOptions) []*listenerv3.Listener {
	listeners := newInbound(static, o.Mesh, o.Proxy, o.TrustDomain).listeners()
	own := outboundListeners(static, o.Mesh, o.Proxy)
	listeners = append(listeners, own...)
	scope := o.Proxy.Scope
	if !scope.Redirected {
		return listeners
	}
	for _, name := range scope.Services {
		s := serviceOf(o.Mesh, name).For(o.Proxy.Dataplane.Node())
		for _, at := range s.Listeners() {
			if !slices.Contains(scope.Outbounds, at) {
				listeners = append(listeners, serviceListener(static, s, at))
			}
		}
	}
	return listeners
}

func staticClusters(o StaticOptions) []*clusterv3.Cluster {
	clusters := InboundClusters(o.Mesh, o.Proxy)
	if c := OutboundPassthrough(o.Mesh, o.Proxy); c != nil {
		clusters = append(clusters, c)
	}
	for _, name := range o.Proxy.Scope.Services {
		clusters = append(clusters, outboundCluster(static, o.Mesh, serviceOf(o.Mesh, name).For(o.Proxy.Dataplane.Node())))
	}
	return clusters
}

func staticSecrets(o StaticOptions) []*tlsv3.Secret {
	return []*tlsv3.Secret{
		{
			Name: mesh.SecretIdentity,
			Type: &tlsv3.Secret_TlsCertificate{TlsCertificate: &tlsv3.TlsCertificate{
				CertificateChain: inlineData(o.Certificate),
				PrivateKey:       inlineData(o.Key),
			}},
		},
		{
			Name: mesh.SecretCA,
			Type: &tlsv3.Secret_ValidationContext{ValidationContext: &tlsv3.CertificateValidationContext{
				TrustedCa: inlineData(o.CA),
			}},
		},
	}
}
