package xds

import (
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// gathering returns a proxy with two services, its desired resources, and a function that ACKs a response.
func gathering(t *testing.T) (p *proxy, d resource.Desired, ack func(r *response)) {
	t.Helper()
	set, _ := services(1)
	set = set.With([]*resource.Resource{res(resource.Cluster, "b@1"), res(resource.Endpoint, "b@1")}, nil)
	d = resource.Desired{Shared: set}
	p, _ = syncAll(t, d, []string{"service-0000", "b"})
	p.gatherTime = gatherTime
	ack = func(r *response) {
		if _, err := p.receiveDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(r.subscription.kind), ResponseNonce: r.nonce}); err != nil {
			t.Fatal(err)
		}
	}
	return p, d, ack
}

// change sets new versions of some resources, and returns what is sent at once.
func change(p *proxy, d *resource.Desired, put ...*resource.Resource) *response {
	d.Shared = d.Shared.With(put, nil)
	p.setDesired(*d)
	return p.next()
}

func sentNames(r *response) []string {
	if r == nil {
		return nil
	}
	var all []string
	for _, m := range r.resources {
		all = append(all, m.resource.Type.Short()+" "+m.name+"@"+m.resource.Version)
	}
	return all
}

func TestEndpointsGather(t *testing.T) {
	first, second := res(resource.Endpoint, "service-0000@2"), res(resource.Endpoint, "service-0000@3")
	other := res(resource.Endpoint, "b@2")
	tests := map[string]struct {
		then func(p *proxy, d *resource.Desired, ack func(*response), sent *response) *response
		want []string
	}{
		"until the proxy answers": {func(p *proxy, d *resource.Desired, ack func(*response), sent *response) *response {
			if r := change(p, d, second); r != nil {
				return r
			}
			if r := change(p, d, other); r != nil {
				return r
			}
			ack(sent)
			return p.next()
		}, []string{"endpoint b@2", "endpoint service-0000@3"}},
		"not for long": {func(p *proxy, d *resource.Desired, _ func(*response), _ *response) *response {
			if r := change(p, d, second); r != nil {
				return r
			}
			time.Sleep(gatherTime)
			return p.next()
		}, []string{"endpoint service-0000@3"}},
		"not what was asked for": {func(p *proxy, d *resource.Desired, _ func(*response), _ *response) *response {
			if r := change(p, d, second); r != nil {
				return r
			}
			p.requireMention(p.subscription(resource.Endpoint), "b")
			return p.next()
		}, []string{"endpoint b@1", "endpoint service-0000@3"}},
		"clusters do not wait": {func(p *proxy, d *resource.Desired, _ func(*response), _ *response) *response {
			return change(p, d, second, res(resource.Cluster, "b@2"))
		}, []string{"cluster b@2"}},
		"listeners come after them": {func(p *proxy, d *resource.Desired, ack func(*response), sent *response) *response {
			if r := change(p, d, second, res(resource.Listener, "service-0000@2")); r != nil {
				return r
			}
			ack(sent)
			return p.next()
		}, []string{"endpoint service-0000@3"}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			p, d, ack := gathering(t)
			sent := change(p, &d, first)
			if diff := cmp.Diff([]string{"endpoint service-0000@2"}, sentNames(sent)); diff != "" {
				t.Fatalf("the first change (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, sentNames(tc.then(p, &d, ack, sent))); diff != "" {
				t.Errorf("sent (-want +got):\n%s", diff)
			}
		})
	}
}

// TestGatheredChangesAreSent uses a real stream, with a proxy that never ACKs.
func TestGatheredChangesAreSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t, Options{})
		f.want("m/a", "EDS x@1")
		p := f.delta().listen()
		p.send(ask("m/a", "EDS", "x"))
		expect(t, said(p.next()), "EDS x@1")
		for _, version := range []string{"2", "3", "4"} { // without an ACK
			f.want("m/a", "EDS x@"+version)
			time.Sleep(gatherTime - 1)
			p.quiet()
			time.Sleep(time.Nanosecond)
			expect(t, said(p.next()), "EDS x@"+version)
		}
	})
}
