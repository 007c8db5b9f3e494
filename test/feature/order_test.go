package feature

import (
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

func TestFirstSync(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Connect("web-1", p)
		web.Sent(firstSync...)
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
		web.Expect(resource.Cluster, "api").Identities(apiIdentity)
		web.Sent()

		db := f.Connect("db-1", p)
		db.Sent("cluster inbound:5432", "listener inbound:10.0.0.5:5432 readiness")
	})
}

func TestEndpointIsAdded(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		web, db := f.Connect("web-1", p), f.Connect("db-1", p)
		web.Sent(firstSync...)
		db.Sent("cluster inbound:5432", "listener inbound:10.0.0.5:5432 readiness")
		f.Put("api-2.yaml")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
		web.Sent("endpoint api")
		db.Sent()
	})
}

// Endpoints follow their cluster at once. The listener and routes wait until the cluster is warm.
func TestServiceIsAdded(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Put("cache-1.yaml")
		web.Sent()
		f.Put("web-1-cache.yaml")
		web.Sent("cluster cache", "endpoint cache", "listener outbound:127.0.0.1:10003", "route cache")
		web.Expect(resource.Endpoint, "cache").Addresses("10.0.0.7:6379+mtls")
	})
}

// An outbound may appear before its service: nothing waits for its endpoints.
func TestOutboundBeforeItsService(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Put("web-1-cache.yaml")
		web.Sent("cluster cache", "endpoint cache", "listener outbound:127.0.0.1:10003")
		web.Expect(resource.Endpoint, "cache").Addresses()
		// The service speaks HTTP: the cluster and listener change, and the listener asks for routes.
		f.Put("cache-1.yaml")
		web.Sent("cluster cache", "endpoint cache", "endpoint cache", "listener outbound:127.0.0.1:10003", "route cache")
		web.Expect(resource.Endpoint, "cache").Addresses("10.0.0.7:6379+mtls")
	})
}

func TestServiceIsRemoved(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Put("web-1-without-api.yaml")
		web.Sent("listener -outbound:127.0.0.1:10001", "route -api", "cluster -api")
		web.Expect(resource.Endpoint, "db").Addresses("10.0.0.5:5432+mtls")
	})
}

// The replacement of a service is in place before the service is removed.
func TestServiceIsReplaced(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.PutYAML(`
type: Dataplane
mesh: default
name: web-1
networking:
  address: 10.0.0.1
  inbound:
  - {port: 8080, tags: {kuma.io/service: web, kuma.io/protocol: http}}
  outbound:
  - {port: 10001, tags: {kuma.io/service: cache}}
  - {port: 10002, tags: {kuma.io/service: db}}
`)
		web.Sent("cluster cache", "endpoint cache", "listener outbound:127.0.0.1:10001", "route cache", "route -api", "cluster -api")
	}, "cache-1.yaml")
}

// A changed cluster is followed by its endpoints at once, even if they are the same. Endpoints that only the new
// cluster accepts wait until it is warm: the old cluster, in use until then, would refuse them.
func TestIdentityIsAdded(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		web.Expect(resource.Cluster, "api").Identities(apiIdentity)
		web.Hold()
		f.Put("api-2-canary.yaml")
		web.Sent("cluster api", "endpoint api")
		web.Expect(resource.Cluster, "api").Identities(apiIdentity, canaryIdentity)
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
		web.Release()
		web.Sent("endpoint api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
	})
}

func TestIdentityIsRemoved(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		web.Expect(resource.Cluster, "api").Identities(apiIdentity, canaryIdentity)
		f.Delete(mesh.KindDataplane, "api-2")
		web.Sent("cluster api", "endpoint api")
		web.Expect(resource.Cluster, "api").Identities(apiIdentity)
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
	}, "api-2-canary.yaml")
}

// An Envoy whose agent takes records gets the records in mode PERMISSIVE, their cluster first. Other Envoys get nothing
// about records.
func TestModeChangesWithRecords(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		web.Restart(true)
		web.Sent(firstSync...)
		f.Put("mesh-permissive.yaml")
		web.Sent("cluster agent:records api db", "endpoint api db", "listener inbound:10.0.0.1:8080")
		f.Put("../mesh.yaml")
		web.Sent("cluster api db", "endpoint api db", "listener inbound:10.0.0.1:8080", "cluster -agent:records")
		f.Put("mesh-permissive.yaml")
		web.Restart(false)
		web.Sent(firstSync...)
	})
}

func TestModeChanges(t *testing.T) {
	synced(t, func(_ *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		f.Put("mesh-permissive.yaml")
		web.Sent("cluster api db", "endpoint api db", "listener inbound:10.0.0.1:8080")
		f.Put("mesh-off.yaml")
		web.Sent("cluster api db", "endpoint api db", "listener inbound:10.0.0.1:8080")
		web.Expect(resource.Cluster, "api").Identities()
		web.Expect(resource.Cluster, "db").Identities()
		f.Put("../mesh.yaml")
		web.Sent("cluster api db", "endpoint api db", "listener inbound:10.0.0.1:8080")
		web.Expect(resource.Cluster, "db").Identities(dbIdentity)
	})
}
