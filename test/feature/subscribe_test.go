package feature

import (
	"slices"
	"testing"

	"github.com/sonde-mesh/sonde/test/featuretest"
	"github.com/sonde-mesh/sonde/xds/resource"
)

const node = "default/web-1"

// expect checks a response: the names that it contains, and with a minus those that it removes.
func expect(t *testing.T, r *featuretest.Response, typ resource.Type, want ...string) {
	t.Helper()
	got := r.Names()
	for _, name := range slices.Sorted(slices.Values(r.Gone)) {
		got = append(got, "-"+name)
	}
	if r.Type != typ || !slices.Equal(got, want) {
		t.Errorf("response is %s %q, want %s %q", r.Type.Short(), got, typ.Short(), want)
	}
}

func TestWildcards(t *testing.T) {
	all := []string{"api", "db", "inbound:8080"}
	for name, names := range map[string][]string{"legacy": nil, "star": {"*"}} {
		t.Run(name, func(t *testing.T) {
			both(t, func(t *testing.T, p featuretest.Protocol) {
				f := featuretest.Start(t, "two-services")
				web := f.Dial("web-1", p)
				web.Send(&featuretest.Request{Node: node, Type: resource.Cluster, Add: names})
				r := web.Next()
				expect(t, r, resource.Cluster, all...)
				web.Ack(r)
				f.Put("web-1-cache.yaml")
				r = web.Next()
				if p == featuretest.SotW {
					expect(t, r, resource.Cluster, "api", "cache", "db", "inbound:8080")
				} else {
					expect(t, r, resource.Cluster, "cache")
				}
				web.Ack(r)
				web.ExpectQuiet()
			})
		})
	}
}

// Endpoints and routes have no legacy wildcard: a first request without names asks for nothing.
func TestNothingIsAskedFor(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Endpoint})
		web.Send(&featuretest.Request{Type: resource.Route})
		f.Put("api-2.yaml")
		web.ExpectQuiet()
	})
}

func TestNames(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Cluster, Add: []string{"db"}})
		r := web.Next()
		expect(t, r, resource.Cluster, "db")
		web.Ack(r)
		web.Send(&featuretest.Request{Type: resource.Endpoint, Add: []string{"api", "db"}})
		r = web.Next()
		expect(t, r, resource.Endpoint, "api", "db")
		web.Ack(r)
		// A name that the client has not asked for is not sent.
		f.Put("api-2-canary.yaml")
		r = web.Next()
		expect(t, r, resource.Endpoint, "api")
		web.Ack(r)
		web.ExpectQuiet()
	})
}

func TestUnknownName(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Endpoint, Add: []string{"cache"}})
		r := web.Next()
		if p == featuretest.SotW { // it cannot say that there is none, and Envoy waits
			expect(t, r, resource.Endpoint, "cache")
		} else {
			expect(t, r, resource.Endpoint, "-cache")
		}
		web.Ack(r)
		f.Put("cache-1.yaml")
		web.ExpectQuiet()
		f.Put("web-1-cache.yaml")
		r = web.Next()
		expect(t, r, resource.Endpoint, "cache")
		web.Ack(r)
		web.Expect(resource.Endpoint, "cache").Addresses("10.0.0.7:6379+mtls")
	})
}

// If a client subscribes to a name again, only that name is sent again.
func TestResubscribe(t *testing.T) {
	t.Parallel()
	f := featuretest.Start(t, "two-services")
	web := f.Dial("web-1", featuretest.Delta)
	web.Send(&featuretest.Request{Node: node, Type: resource.Endpoint, Add: []string{"api", "db"}})
	web.Ack(web.Next())
	web.Send(&featuretest.Request{Type: resource.Endpoint, Add: []string{"db"}})
	r := web.Next()
	expect(t, r, resource.Endpoint, "db")
	web.Ack(r)
	everything := func() {
		t.Helper()
		web.Send(&featuretest.Request{Type: resource.Cluster, Add: []string{"*"}})
		clusters, endpoints := web.Next(), web.Next()
		expect(t, clusters, resource.Cluster, "api", "db", "inbound:8080")
		// New clusters warm, so their endpoints follow.
		expect(t, endpoints, resource.Endpoint, "api", "db")
		web.Ack(endpoints)
		web.Ack(clusters)
	}
	everything()
	web.Send(&featuretest.Request{Type: resource.Cluster, Add: []string{"inbound:8080"}})
	r = web.Next()
	expect(t, r, resource.Cluster, "inbound:8080")
	web.Ack(r)
	everything()
	web.ExpectQuiet()
}

func TestUnsubscribe(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Endpoint, Add: []string{"api", "db"}})
		web.Ack(web.Next())
		web.Send(&featuretest.Request{Type: resource.Endpoint, Remove: []string{"api"}})
		web.Sync()
		f.Put("api-2.yaml")
		web.ExpectQuiet()
		// It is sent again for the next subscription, in its current version.
		web.Send(&featuretest.Request{Type: resource.Endpoint, Add: []string{"api"}})
		r := web.Next()
		expect(t, r, resource.Endpoint, "api")
		web.Ack(r)
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.3:80+mtls", "10.0.0.4:80+mtls")
	})
}

// A client that unsubscribes from the wildcard keeps its subscriptions by name.
func TestUnsubscribeFromAll(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Cluster, Add: []string{"*", "api"}})
		r := web.Next()
		expect(t, r, resource.Cluster, "api", "db", "inbound:8080")
		web.Ack(r)
		web.Send(&featuretest.Request{Type: resource.Cluster, Remove: []string{"*"}})
		web.Sync()
		f.Put("web-1-cache.yaml")
		web.ExpectQuiet()
		f.Put("api-2-canary.yaml")
		expect(t, web.Next(), resource.Cluster, "api")
	})
}

// An answer with an old or unknown nonce is ignored.
func TestOutOfDateNonces(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		web.Send(&featuretest.Request{Node: node, Type: resource.Endpoint, Add: []string{"api"}})
		first := web.Next()
		web.Ack(first)
		f.Put("api-2.yaml")
		second := web.Next()
		web.Ack(second)
		web.Send(&featuretest.Request{Type: resource.Endpoint, Nonce: first.Nonce, Refusal: "too late"})
		web.Send(&featuretest.Request{Type: resource.Endpoint, Nonce: "of nobody", Refusal: "of nobody"})
		web.Send(&featuretest.Request{Type: resource.Endpoint, Nonce: second.Nonce, Refusal: "answered already"})
		web.ExpectQuiet()
		for _, s := range f.Status() {
			for _, of := range s.Types {
				if len(of.NACKs) > 0 {
					t.Errorf("Status() has NACKs %+v", of.NACKs)
				}
			}
		}
		f.Put("api-1-unready.yaml")
		expect(t, web.Next(), resource.Endpoint, "api")
		web.Expect(resource.Endpoint, "api").Addresses("10.0.0.4:80+mtls")
	})
}

// In the state of the world the names of a request that does not know the last response are ignored, too.
func TestOutOfDateNames(t *testing.T) {
	t.Parallel()
	f := featuretest.Start(t, "two-services")
	web := f.Dial("web-1", featuretest.SotW)
	web.Send(&featuretest.Request{Node: node, Type: resource.Endpoint, Add: []string{"api"}})
	first := web.Next()
	web.Ack(first)
	f.Put("api-2.yaml")
	second := web.Next()
	// The client sends this before it has read the second response.
	web.Send(&featuretest.Request{Type: resource.Endpoint, Add: []string{"db"}, Nonce: first.Nonce})
	web.Ack(second) // which repeats the names
	r := web.Next()
	expect(t, r, resource.Endpoint, "db")
	web.Ack(r)
	web.ExpectQuiet()
}

// TestUnknownType asks for a type that is not served, beside those that are.
func TestUnknownType(t *testing.T) {
	both(t, func(t *testing.T, p featuretest.Protocol) {
		f := featuretest.Start(t, "two-services")
		web := f.Dial("web-1", p)
		const unknown = resource.Type("type.googleapis.com/envoy.config.unknown.v3.Thing")
		web.Send(&featuretest.Request{Node: node, Type: unknown})
		r := web.Next()
		expect(t, r, unknown)
		web.Ack(r)
		web.Send(&featuretest.Request{Type: resource.Endpoint, Add: []string{"api"}})
		expect(t, web.Next(), resource.Endpoint, "api")
	})
}
