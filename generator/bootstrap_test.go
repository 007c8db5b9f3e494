package generator_test

import (
	"cmp"
	"strconv"
	"strings"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
)

func TestBootstrapControlPlane(t *testing.T) {
	tests := map[string]struct {
		address string
		host    string
		port    uint32
		found   clusterv3.Cluster_DiscoveryType
		wantErr bool
	}{
		"name":           {address: "sonde-cp.mesh:5678", host: "sonde-cp.mesh", port: 5678, found: clusterv3.Cluster_STRICT_DNS},
		"IPv4":           {address: "10.0.0.1:1", host: "10.0.0.1", port: 1, found: clusterv3.Cluster_STATIC},
		"IPv6":           {address: "[fd00::1]:65535", host: "fd00::1", port: 65535, found: clusterv3.Cluster_STATIC},
		"no port":        {address: "sonde-cp", wantErr: true},
		"no host":        {address: ":5678", wantErr: true},
		"empty host":     {address: "[]:5678", wantErr: true},
		"empty":          {address: "", wantErr: true},
		"bare IPv6":      {address: "fd00::1", wantErr: true},
		"two hosts":      {address: "a:1,b:2", wantErr: true},
		"open bracket":   {address: "[fd00::1:5678", wantErr: true},
		"port 0":         {address: "sonde-cp:0", wantErr: true},
		"port too large": {address: "sonde-cp:65536", wantErr: true},
		"port no number": {address: "sonde-cp:grpc", wantErr: true},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			b, err := generator.Bootstrap(generator.BootstrapOptions{
				Node:         "default/web-1",
				ControlPlane: tc.address,
				ServingName:  mesh.ServingName,
			})
			if tc.wantErr {
				if err == nil || !strings.Contains(err.Error(), strconv.Quote(tc.address)) {
					t.Fatalf("Bootstrap() error = %v, want one that names %q", err, tc.address)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			c := b.GetStaticResources().GetClusters()[0]
			at := c.GetLoadAssignment().GetEndpoints()[0].GetLbEndpoints()[0].GetEndpoint().GetAddress().GetSocketAddress()
			if at.GetAddress() != tc.host || at.GetPortValue() != tc.port || c.GetType() != tc.found {
				t.Errorf("control plane at %s:%d by %s, want %s:%d by %s",
					at.GetAddress(), at.GetPortValue(), c.GetType(), tc.host, tc.port, tc.found)
			}
		})
	}
}

// TestServingCA checks the bootstrap for agents that write the CAs of the control plane to a file, and for agents of
// earlier releases.
func TestServingCA(t *testing.T) {
	ca := pem(t, "serving-ca.pem")
	for name, given := range map[string][]byte{"file": nil, "inline": ca} {
		t.Run(name, func(t *testing.T) {
			b, err := generator.Bootstrap(generator.BootstrapOptions{
				Node: "default/web-1", ControlPlane: "sonde-cp:5678", ServingCA: given, ServingName: mesh.ServingName,
			})
			if err != nil {
				t.Fatal(err)
			}
			var socket tlsv3.UpstreamTlsContext
			if err := b.GetStaticResources().GetClusters()[0].GetTransportSocket().GetTypedConfig().UnmarshalTo(&socket); err != nil {
				t.Fatal(err)
			}
			inline, combined := socket.GetCommonTlsContext().GetValidationContext(), socket.GetCommonTlsContext().GetCombinedValidationContext()
			names := cmp.Or(inline, combined.GetDefaultValidationContext()).GetMatchTypedSubjectAltNames()
			if len(names) != 1 || names[0].GetMatcher().GetExact() != mesh.ServingName {
				t.Errorf("accepted names = %v, want only the control plane's", names)
			}
			file := combined.GetValidationContextSdsSecretConfig().GetSdsConfig().GetPathConfigSource().GetPath()
			if got := inline.GetTrustedCa().GetInlineString(); got != string(given) || (file == mesh.FileServingCA) != (given == nil) {
				t.Errorf("the CAs are %q and in file %q", got, file)
			}
		})
	}
}
