package generator_test

import (
	"net/netip"
	"slices"
	"testing"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/generator"
	"github.com/sonde-mesh/sonde/meshview"
)

// meshOf returns a Mesh with an mTLS mode; "" means no mTLS.
func meshOf(mode mesh.MTLSMode) *meshview.Mesh {
	spec := &mesh.Mesh{Name: mesh.DefaultMesh}
	if mode != "" {
		spec.Spec.MTLS = &mesh.MTLS{EnabledBackend: "ca", Backends: []mesh.Backend{{Name: "ca", Type: mesh.BackendBuiltin, Mode: mode}}}
	}
	return &meshview.Mesh{Spec: spec}
}

// socketFor returns the name of the transport socket match that Envoy uses for e: the first match whose labels e has.
// "" means plaintext.
func socketFor(c *clusterv3.Cluster, e meshview.Endpoint) string {
	a := generator.LoadAssignment(&meshview.Service{Name: c.GetName(), Endpoints: []meshview.Endpoint{e}})
	labels := a.GetEndpoints()[0].GetLbEndpoints()[0].GetMetadata().GetFilterMetadata()["envoy.transport_socket_match"].GetFields()
	for _, m := range c.GetTransportSocketMatches() {
		matches := true
		for key, value := range m.GetMatch().GetFields() {
			matches = matches && labels[key].GetStringValue() == value.GetStringValue()
		}
		if matches {
			return m.GetTransportSocket().GetName()
		}
	}
	return c.GetTransportSocket().GetName()
}

func TestWhatIsSpokenToAnEndpoint(t *testing.T) {
	const mtls, plain = "envoy.transport_sockets.tls", ""
	at := netip.MustParseAddrPort("10.0.0.1:80")
	bare := meshview.Endpoint{Address: at, Health: meshview.Ready}
	sidecar := meshview.Endpoint{Address: at, Health: meshview.Ready, Sidecar: true}
	serverFirst := meshview.Endpoint{Address: at, Health: meshview.Ready, Sidecar: true, ServerFirst: true}
	tests := map[string]struct {
		mode                       mesh.MTLSMode
		bare, sidecar, serverFirst string
	}{
		"no mTLS":    {mode: "", bare: plain, sidecar: plain, serverFirst: plain},
		"PERMISSIVE": {mode: mesh.ModePermissive, bare: plain, sidecar: mtls, serverFirst: plain},
		"STRICT":     {mode: mesh.ModeStrict, bare: plain, sidecar: mtls, serverFirst: mtls},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := generator.OutboundCluster(meshOf(tc.mode), &meshview.Service{Name: "api", Protocol: mesh.ProtocolTCP})
			got := []string{socketFor(c, bare), socketFor(c, sidecar), socketFor(c, serverFirst)}
			if want := []string{tc.bare, tc.sidecar, tc.serverFirst}; !slices.Equal(got, want) {
				t.Errorf("bare, sidecar, server first: %q, want %q", got, want)
			}
		})
	}
}

func TestAcceptedIdentities(t *testing.T) {
	tests := map[string]struct{ identities, want []string }{
		"the service's": {identities: []string{"spiffe://a/b", "spiffe://a/c"}, want: []string{"spiffe://a/b", "spiffe://a/c"}},
		// An empty list of matchers would accept every identity.
		"no service's": {want: []string{"spiffe://nobody"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := generator.OutboundCluster(meshOf(mesh.ModeStrict), &meshview.Service{Name: "api", Identities: tc.identities})
			for _, m := range c.GetTransportSocketMatches() {
				var context tlsv3.UpstreamTlsContext
				if err := m.GetTransportSocket().GetTypedConfig().UnmarshalTo(&context); err != nil {
					t.Fatal(err)
				}
				validation := context.GetCommonTlsContext().GetCombinedValidationContext().GetDefaultValidationContext()
				var got []string
				for _, san := range validation.GetMatchTypedSubjectAltNames() {
					if san.GetSanType() != tlsv3.SubjectAltNameMatcher_URI {
						t.Errorf("matches a SAN of type %s", san.GetSanType())
					}
					got = append(got, san.GetMatcher().GetExact())
				}
				if diff := cmp.Diff(tc.want, got); diff != "" {
					t.Errorf("accepted identities (-want +got):\n%s", diff)
				}
			}
		})
	}
}

// In STRICT no chain accepts plaintext, except chains that do not lead to an application.
func TestStrictTakesNoPlainText(t *testing.T) {
	harmless := []string{"loop:15006", "loop:15001", "readiness"}
	for _, redirected := range []bool{false, true} {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: "web-1"}}
		d.Spec.Networking.Address = "10.0.0.1"
		for i, p := range mesh.Protocols() {
			d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{
				Port: uint32(8080 + i), ServerFirst: p == mesh.ProtocolTCP,
				Tags: mesh.Tags{mesh.TagService: "web", mesh.TagProtocol: string(p)},
			})
		}
		if redirected {
			d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{}
		}
		d.SetDefaults()
		for _, l := range generator.InboundListeners(meshOf(mesh.ModeStrict), &meshview.Proxy{Dataplane: d}, mesh.DefaultTrustDomain, true) {
			if l.GetDefaultFilterChain() != nil {
				t.Errorf("%s has a default chain", l.GetName())
			}
			if slices.ContainsFunc(l.GetListenerFilters(), func(f *listenerv3.ListenerFilter) bool {
				return f.GetName() == "envoy.filters.listener.tls_inspector"
			}) {
				t.Errorf("%s has a TLS inspector", l.GetName())
			}
			for _, c := range l.GetFilterChains() {
				if c.GetTransportSocket() == nil && !slices.Contains(harmless, c.GetName()) {
					t.Errorf("%s: chain %s accepts plaintext", l.GetName(), c.GetName())
				}
			}
		}
	}
}

// Envoy updates a listener in place, and closes no connection of another port, if only filter chains differ.
func TestInboundChangesOnlyFilterChains(t *testing.T) {
	for _, mode := range []mesh.MTLSMode{"", mesh.ModeStrict, mesh.ModePermissive} {
		listeners := func(ports ...uint32) (clipped []*listenerv3.Listener) {
			d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: mesh.DefaultMesh, Name: "web-1"}}
			d.Spec.Networking.Address = "10.0.0.1"
			d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{}
			for _, port := range ports {
				d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: port, Tags: mesh.Tags{mesh.TagService: "web"}})
			}
			d.SetDefaults()
			for _, l := range generator.InboundListeners(meshOf(mode), &meshview.Proxy{Dataplane: d}, mesh.DefaultTrustDomain, true) {
				l.FilterChains = nil
				clipped = append(clipped, l)
			}
			return clipped
		}
		want := listeners()
		for _, ports := range [][]uint32{{80}, {80, 90}} {
			if diff := cmp.Diff(want, listeners(ports...), protocmp.Transform()); diff != "" {
				t.Errorf("mode %q: inbounds %d change more than filter chains:\n%s", mode, ports, diff)
			}
		}
	}
}
