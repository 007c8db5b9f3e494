package feature

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// A new control plane gives the same versions to the same objects.
func TestReconnectToANewControlPlane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := featuretest.Start(t, "two-services")
		f.Put("api-2.yaml")
		f.Put("api-2-canary.yaml")
		web := f.Connect("web-1", envoysim.Delta)
		web.Sent(firstSync...)
		f.Restart()
		web.Reconnect()
		web.Sent()
		f.Delete(mesh.KindDataplane, "api-1")
		web.Sent("cluster api", "endpoint api")
	})
}

// A state-of-the-world client gets everything again, with the same versions.
func TestReconnectOfTheStateOfTheWorld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := featuretest.Start(t, "two-services")
		web := f.Connect("web-1", envoysim.SotW)
		web.Sent(firstSync...)
		before := web.Has()
		f.Restart()
		web.Reconnect()
		web.Sent("cluster", "endpoint api db", "listener", "route api")
		if diff := cmp.Diff(before, web.Has()); diff != "" {
			t.Errorf("after the reconnect (-before +after):\n%s", diff)
		}
	})
}

func TestReconnectAfterChanges(t *testing.T) {
	tests := map[string]struct {
		meanwhile func(f *featuretest.Feature)
		want      []string
	}{
		"an endpoint": {
			meanwhile: func(f *featuretest.Feature) { f.Put("api-2.yaml") },
			want:      []string{"endpoint api"},
		},
		"an identity": {
			meanwhile: func(f *featuretest.Feature) { f.Put("api-2-canary.yaml") },
			want:      []string{"cluster api", "endpoint api"},
		},
		"a service more": {
			meanwhile: func(f *featuretest.Feature) { f.Put("cache-1.yaml"); f.Put("web-1-cache.yaml") },
			want:      []string{"cluster cache", "endpoint cache", "listener outbound:127.0.0.1:10003", "route cache"},
		},
		"a service less": {
			meanwhile: func(f *featuretest.Feature) { f.Put("web-1-without-api.yaml") },
			// An empty response comes before the first removal: its ACK shows that all requests have arrived.
			want: []string{"cluster", "listener -outbound:127.0.0.1:10001", "route -api", "cluster -api"},
		},
		"a replica replaced": {
			meanwhile: func(f *featuretest.Feature) { f.Delete(mesh.KindDataplane, "api-1"); f.Put("api-2.yaml") },
			want:      []string{"endpoint api"},
		},
		"there and back": {
			meanwhile: func(f *featuretest.Feature) {
				f.Put("api-1-unready.yaml")
				f.Put("mesh-off.yaml")
				f.Put("../mesh.yaml")
				f.Put("../api-1.yaml")
			},
		},
	}
	for name, tc := range tests {
		for what, restart := range map[string]bool{"same": false, "restarted": true} {
			virtual.Run(t, name+"/"+what, func(t *testing.T) {
				f := featuretest.Start(t, "two-services")
				web := f.Connect("web-1", envoysim.Delta)
				web.Sent(firstSync...)
				web.Close()
				if restart {
					f.Stop()
				}
				tc.meanwhile(f)
				if restart {
					f.Restart()
				}
				web.Reconnect()
				web.Sent(tc.want...)
				fresh := f.Connect("web-1", envoysim.Delta)
				fresh.Sync()
				if diff := cmp.Diff(fresh.Has(), web.Has()); diff != "" {
					t.Errorf("a new client and the one that came back differ (-new +back):\n%s", diff)
				}
			})
		}
	}
}

// A proxy whose Dataplane is gone keeps its resources. A new control plane, which has never seen it, removes nothing.
func TestReconnectWithoutADataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := featuretest.Start(t, "two-services")
		web := f.Connect("web-1", envoysim.Delta)
		web.Sent(firstSync...)
		before := web.Has()
		f.Delete(mesh.KindDataplane, "web-1")
		f.Restart()
		web.Reconnect()
		f.Put("api-2.yaml") // not relevant to the proxy
		web.Sync()
		if s := f.Status(); len(s) != 1 || s[0].Known || len(s[0].Types) != 4 {
			t.Errorf("status %+v, want web-1 waiting with four requested types", s)
		}
		if diff := cmp.Diff(before, web.Has()); diff != "" {
			t.Errorf("resources of the proxy (-before +after):\n%s", diff)
		}
		f.Put("web-1-cache.yaml")
		web.Sent("cluster cache", "endpoint api", "endpoint cache", "listener outbound:127.0.0.1:10003")
	})
}

// Two independent servers compute the same versions of all resources.
func TestSameFilesSameVersions(t *testing.T) {
	for _, name := range []string{"two-services", "redirected", "two-meshes"} {
		virtual.Run(t, name, func(t *testing.T) {
			first, second := featuretest.Start(t, name), featuretest.Start(t, name)
			for _, proxy := range []string{"web-1", "api-1"} {
				got := first.Resources(proxy)
				if len(got) < 3 {
					t.Fatalf("Resources(%s) = %q", proxy, got)
				}
				if diff := cmp.Diff(got, second.Resources(proxy)); diff != "" {
					t.Errorf("%s (-first +second):\n%s", proxy, diff)
				}
				// Both protocols send the same bytes.
				delta, sotw := first.Connect(proxy, envoysim.Delta), second.Connect(proxy, envoysim.SotW)
				delta.Sync()
				sotw.Sync()
				if diff := cmp.Diff(delta.Has(), sotw.Has()); diff != "" {
					t.Errorf("%s (-delta +sotw):\n%s", proxy, diff)
				}
			}
		})
	}
}

// An unknown proxy waits. An empty configuration would close its listeners.
func TestDataplaneComesLater(t *testing.T) {
	both(t, func(t *testing.T, p envoysim.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Connect("web-2", p)
		web.Sync()
		if s := f.Status(); len(s) != 1 || s[0].Known || len(s[0].Types) != 1 {
			t.Errorf("status %+v, want web-2 waiting for clusters", s)
		}
		f.Put("api-2.yaml") // not relevant to the proxy
		f.Put("web-2.yaml")
		web.Sent("cluster api db inbound:8080", "endpoint api db",
			"listener inbound:10.0.0.2:8080 outbound:127.0.0.1:10001 outbound:127.0.0.1:10002 readiness", "route api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
	})
}

func TestDataplaneIsDeleted(t *testing.T) {
	synced(t, func(t *testing.T, f *featuretest.Feature, web *featuretest.Client) {
		before := web.Has()
		f.Delete(mesh.KindDataplane, "web-1")
		f.Put("api-2.yaml")
		web.Sent()
		if diff := cmp.Diff(before, web.Has()); diff != "" {
			t.Errorf("resources of the proxy (-before +after):\n%s", diff)
		}
		// The proxy's Dataplane returns with a change.
		f.Put("web-1-cache.yaml")
		web.Sent("cluster cache", "endpoint api", "endpoint cache", "listener outbound:127.0.0.1:10003")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
	})
}
