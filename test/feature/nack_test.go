package feature

import (
	"testing"

	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds"
	"github.com/sonde-mesh/sonde/xds/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const refusedListener = "outbound:127.0.0.1:10003"

// refused waits until the status of web-1 lists exactly this resource as refused, or none if name is empty.
func refused(t *testing.T, f *featuretest.Feature, typ resource.Type, name, reason string) {
	t.Helper()
	featuretest.Eventually(t, func() string {
		var nacks []xds.NACK
		for _, s := range f.Status() {
			for _, of := range s.Types {
				nacks = append(nacks, of.NACKs...)
			}
		}
		if name == "" && len(nacks) == 0 {
			return ""
		}
		if len(nacks) == 1 && nacks[0].Type == typ && nacks[0].Name == name && nacks[0].Version != "" && nacks[0].Reason == reason {
			return ""
		}
		return "refused are not yet what they should be"
	})
}

// A listener is refused alone: the stream goes on, and the listener is not sent again until it changes.
func TestRefusedAlone(t *testing.T) {
	synced(t, func(t *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		web.Refuse(resource.Listener, refusedListener, "cannot bind")
		f.Put("web-1-cache.yaml")
		web.Sent("cluster cache", "endpoint cache", "listener "+refusedListener)
		refused(t, f, resource.Listener, refusedListener, "cannot bind")
		f.Put("api-2.yaml")
		web.Sent("endpoint api")
		// It is accepted when it has changed: the service speaks TCP now.
		web.Refuse(resource.Listener, refusedListener, "")
		f.PutYAML(`
type: Dataplane
mesh: default
name: cache-1
networking:
  address: 10.0.0.7
  inbound:
  - {port: 6379, tags: {kuma.io/service: cache}}
`)
		web.Sent("cluster cache", "endpoint cache", "listener "+refusedListener)
		refused(t, f, "", "", "")
	}, "cache-1.yaml")
}

// A listener is refused together with good ones. Those are sent again without it, since otherwise Envoy would not name them
// when it reconnects, and they could not be deleted in the meantime.
func TestRefusedAmongGoodOnes(t *testing.T) {
	for what, restart := range map[string]bool{"same": false, "restarted": true} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			f := featuretest.Start(t, "two-services")
			web := f.Connect("web-1", envoysim.Delta)
			const bad, good = "outbound:127.0.0.1:10001", "outbound:127.0.0.1:10002"
			web.Refuse(resource.Listener, bad, "cannot bind")
			web.Sent("cluster api db inbound:8080", "endpoint api db", allListeners, "listener inbound:10.0.0.1:8080 "+good+" readiness")
			refused(t, f, resource.Listener, bad, "cannot bind")
			if restart {
				f.Stop()
			}
			web.Close()
			f.Put("web-1-without-outbounds.yaml")
			if restart {
				f.Restart()
			}
			web.Reconnect()
			web.Sent("cluster", "listener -"+good, "cluster -api -db")
		})
	}
}

// A refused cluster keeps its last good version, and the good ones beside it are used.
func TestRefusedCluster(t *testing.T) {
	synced(t, func(t *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		before := web.Has()
		web.Refuse(resource.Cluster, "api", "no")
		f.Put("api-2-canary.yaml")
		web.Sync()
		web.Expect(resource.Cluster, "api").Identities(apiIdentity)
		refused(t, f, resource.Cluster, "api", "no")
		web.Refuse(resource.Cluster, "api", "")
		f.Delete("Dataplane", "api-2")
		web.Sync()
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
		refused(t, f, "", "", "")
		if got := web.Has(); len(got) != len(before) {
			t.Errorf("has %q, before %q", got, before)
		}
	})
}

// Envoy does not say which of several assignments it refuses: they are sent one by one until that is known.
func TestRefusedEndpoints(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Connect("web-1", p)
		web.Refuse(resource.Endpoint, "api", "no")
		web.Sync()
		web.Expect(resource.Endpoint, "db").Addresses("10.0.0.5:5432+mtls")
		refused(t, f, resource.Endpoint, "api", "no")
	})
}

// A refusal of one proxy does not affect others.
func TestRefusedByOneProxy(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		f.Put("web-2.yaml")
		web, other := f.Connect("web-1", p), f.Connect("web-2", p)
		web.Sync()
		other.Sync()
		web.Refuse(resource.Endpoint, "api", "no")
		f.Put("api-2.yaml")
		other.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
		web.Sync()
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls")
		refused(t, f, resource.Endpoint, "api", "no")
	})
}
