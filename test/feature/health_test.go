package feature

import (
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestEndpointIsUnready(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Put("api-1-unready.yaml")
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.4:80+mtls")
		// Envoy would send requests to unready endpoints if it had them.
		f.Put("api-2-unready.yaml")
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses()
		// Accepted identities do not depend on readiness, so only endpoints are sent.
		f.Put("api-2.yaml")
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.4:80+mtls")
	}, "api-2.yaml")
}

// The health of an inbound matters to clients of its service. Nothing is sent to the proxy itself.
func TestOwnHealthTouchesNothing(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		api := f.Connect("api-1", p)
		api.Sent("cluster inbound:80", "listener inbound:10.0.0.3:80 readiness")
		f.Put("api-1-unready.yaml")
		api.Sent()
		f.Observe("api-1", mesh.Observation{Draining: true})
		api.Sent()
	})
}

// A draining proxy gets no new traffic unless no other proxy is ready.
func TestDraining(t *testing.T) {
	synced(t, func(t *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		api := func(want ...string) {
			t.Helper()
			web.Sent("endpoint api")
			web.Expect(resource.Endpoint, "api").Addresses(want...)
		}
		f.Observe("api-1", mesh.Observation{Draining: true})
		api("10.0.0.4:80+mtls")
		f.Observe("api-2", mesh.Observation{Draining: true})
		api("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
		// An unready endpoint is never a last resort.
		f.Put("api-1-unready.yaml")
		api("10.0.0.4:80+mtls")
		f.Observe("api-2", mesh.Observation{})
		web.Sent() // nothing: the endpoint is the same
		f.Observe("api-1", mesh.Observation{})
		web.Sent()
	}, "api-2.yaml")
}

// An observation that arrives before the Dataplane takes effect from the start.
func TestDrainingBeforeTheDataplane(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Observe("api-2", mesh.Observation{Draining: true})
		f.Put("api-2.yaml")
		web.Sent()
		f.Delete(mesh.KindDataplane, "api-1")
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.4:80+mtls")
	})
}

// A service joins the mesh replica by replica: its endpoints without a sidecar get plain text.
func TestEndpointsWithAndWithoutSidecar(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Put("api-outside.yaml")
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.9.0.1:80")
		// The same address has a sidecar now, so the sidecar is used.
		f.PutYAML(`
type: Dataplane
mesh: default
name: api-9
networking:
  address: 10.9.0.1
  inbound:
  - {port: 80, tags: {kuma.io/service: api, kuma.io/protocol: http}}
`)
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.9.0.1:80+mtls")
		f.Delete(mesh.KindDataplane, "api-9")
		web.Sent("endpoint api")
		// Without any sidecar no identity is accepted.
		f.Delete(mesh.KindDataplane, "api-1")
		web.Sent("cluster api", "endpoint api")
		web.Expect(resource.Cluster, "api").Identities(noIdentity)
		web.Expect(resource.Endpoint, "api").Addresses("10.9.0.1:80")
	})
}

// Redirected proxies that see the same services share their resources. Each has its own inbound.
func TestRedirected(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "redirected")
		one, two := f.Connect("web-1", p), f.Connect("web-2", p)
		for _, web := range []*featuretest.Client{one, two} {
			web.Sent(
				"cluster agent:readiness api inbound:8080 legacy outbound:passthrough",
				"endpoint api legacy",
				"listener inbound:capture inbound:capture6 outbound:10.96.0.1:80 outbound:10.96.0.2:25 outbound:capture outbound:capture6 readiness",
				"route api")
		}
		f.Put("api-2.yaml")
		for _, web := range []*featuretest.Client{one, two} {
			web.Sent("endpoint api")
			web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
			web.Expect(resource.Endpoint, "legacy").Addresses("10.9.0.2:25")
			web.Expect(resource.Cluster, "legacy").Identities(noIdentity)
		}
		f.PutYAML("{type: Service, mesh: default, name: late, addresses: ['10.96.0.3:80'], endpoints: [{address: 10.9.0.3, port: 80}]}")
		for _, web := range []*featuretest.Client{one, two} {
			web.Sent("cluster late", "endpoint late", "listener outbound:10.96.0.3:80")
		}
		f.Delete(mesh.KindService, "late")
		for _, web := range []*featuretest.Client{one, two} {
			web.Sent("listener -outbound:10.96.0.3:80", "cluster -late")
		}
	})
}
