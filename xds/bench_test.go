package xds

import (
	"fmt"
	"strconv"
	"testing"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// services returns the resources of n services, and their names.
func services(n int) (set *resource.Set, names []string) {
	var all []*resource.Resource
	for i := range n {
		name := fmt.Sprintf("service-%04d", i)
		names = append(names, name)
		for _, t := range resource.Types() {
			all = append(all, res(t, name+"@1"))
		}
	}
	return resource.NewSet(all...), names
}

// syncAll sends everything to a new proxy. It returns the proxy and the number of resources.
func syncAll(b testing.TB, d resource.Desired, names []string) (p *proxy, resources int) {
	b.Helper()
	p = newProxy(false)
	p.setDesired(d)
	take := func(r *discoveryv3.DeltaDiscoveryRequest) {
		if _, err := p.receiveDelta(r); err != nil {
			b.Fatal(err)
		}
		for m := p.next(); m != nil; m = p.next() {
			resources += len(m.resources)
		}
	}
	for _, t := range resource.Types() {
		first := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(t)}
		if !hasLegacyWildcard(t) {
			first.ResourceNamesSubscribe = names
		}
		take(first)
		take(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(t), ResponseNonce: p.subscription(t).lastNonce})
	}
	return p, resources
}

// BenchmarkSync measures the cost of the protocol for a new proxy without resources.
func BenchmarkSync(b *testing.B) {
	for _, n := range []int{100, 1000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			set, names := services(n)
			for b.Loop() {
				if _, got := syncAll(b, resource.Desired{Shared: set}, names); got != 4*n {
					b.Fatalf("%d resources, want %d", got, 4*n)
				}
			}
		})
	}
}

// removeServices removes services. All removals except of listeners are held for an hour.
func removeServices(b *testing.B, p *proxy, set *resource.Set, services []string) *resource.Set {
	b.Helper()
	p.drainTime = time.Hour
	var remove []resource.Name
	for _, name := range services {
		for _, t := range resource.Types() {
			remove = append(remove, resource.Name{Type: t, Name: name})
		}
	}
	set = set.With(nil, remove)
	p.setDesired(resource.Desired{Shared: set})
	for r := p.next(); r != nil; r = p.next() {
		if r.subscription.kind != resource.Listener {
			b.Fatalf("a response with %s", r.subscription.kind.Short())
		}
		if _, err := p.receiveDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(resource.Listener), ResponseNonce: r.nonce}); err != nil {
			b.Fatal(err)
		}
	}
	return set
}

// BenchmarkChange measures the cost per proxy of a change of one endpoint, also while the removals of other services
// wait for a drain.
func BenchmarkChange(b *testing.B) {
	for name, of := range map[string]struct{ services, removed int }{"100": {100, 0}, "1000": {1000, 0}, "1000, and 1000 drain": {2000, 1000}} {
		b.Run(name, func(b *testing.B) {
			set, names := services(of.services)
			p, _ := syncAll(b, resource.Desired{Shared: set}, names)
			set = removeServices(b, p, set, names[of.services-of.removed:])
			sets := []*resource.Set{set} // each set is derived from the previous one
			for i := range 500 {
				set = set.With([]*resource.Resource{res(resource.Endpoint, fmt.Sprintf("service-0050@%d", i+2))}, nil)
				sets = append(sets, set)
			}
			for i := 1; b.Loop(); i++ {
				p.setDesired(resource.Desired{Shared: sets[i%len(sets)]})
				r := p.next()
				if r == nil || len(r.resources) != 1 {
					b.Fatalf("%v instead of one resource", r)
				}
				m, err := r.delta()
				if err != nil {
					b.Fatal(err)
				}
				if i == 1 && proto.Unmarshal(m.bytes.Materialize(), &discoveryv3.DeltaDiscoveryResponse{}) != nil {
					b.Fatal("not a response")
				}
				if _, err := p.receiveDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(resource.Endpoint), ResponseNonce: r.nonce}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkDecode measures decoding of requests, compared with decoding by protobuf alone.
func BenchmarkDecode(b *testing.B) {
	_, names := services(2000)
	versions := map[string]string{}
	for _, name := range names {
		versions[name] = "0123456789abcdef"
	}
	node := &corev3.Node{Id: "m/a", Cluster: "web", UserAgentName: "envoy"}
	for i := range 1000 {
		node.Extensions = append(node.Extensions, &corev3.Extension{
			Name: fmt.Sprint("envoy.filters.http.number-", i), Category: "envoy.filters.http", TypeUrls: []string{"envoy.extensions.filters.http.v3.Number"},
		})
	}
	for name, r := range map[string]*discoveryv3.DeltaDiscoveryRequest{
		"an ACK":              {TypeUrl: string(resource.Endpoint), ResponseNonce: "17"},
		"the first of Envoy":  {TypeUrl: string(resource.Cluster), Node: node},
		"2000 names":          {TypeUrl: string(resource.Endpoint), ResourceNamesSubscribe: names},
		"2000 names it knows": {TypeUrl: string(resource.Endpoint), ResourceNamesSubscribe: names, InitialResourceVersions: versions},
	} {
		encoded := marshal(b, r)
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := deltaFields.decode(encoded, &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
		b.Run(name+", protobuf alone", func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := proto.Unmarshal(encoded, &discoveryv3.DeltaDiscoveryRequest{}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
