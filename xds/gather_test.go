package xds

import (
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// gathering returns a client that has two services, what it should have, and a function that ACKs a reply.
func gathering(t *testing.T) (c *client, d resource.Desired, ack func(r *reply)) {
	t.Helper()
	set, _ := services(1)
	set = set.With([]*resource.Resource{res(resource.Cluster, "b@1"), res(resource.Endpoint, "b@1")}, nil)
	d = resource.Desired{Shared: set}
	c, _ = syncAll(t, d, []string{"service-0000", "b"})
	c.gatherTime = 100 * time.Millisecond
	ack = func(r *reply) {
		if _, err := c.receiveDelta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: string(r.topic.kind), ResponseNonce: r.nonce}); err != nil {
			t.Fatal(err)
		}
	}
	return c, d, ack
}

// change sets other versions of some resources, and returns what is sent at once.
func change(c *client, d *resource.Desired, put ...*resource.Resource) *reply {
	d.Shared = d.Shared.With(put, nil)
	c.setDesired(*d)
	return c.next()
}

func sentNames(r *reply) []string {
	if r == nil {
		return nil
	}
	var all []string
	for _, p := range r.puts {
		all = append(all, p.Type.Short()+" "+p.Name+"@"+p.Version)
	}
	return all
}

func TestEndpointsGather(t *testing.T) {
	t.Parallel()
	first, second := res(resource.Endpoint, "service-0000@2"), res(resource.Endpoint, "service-0000@3")
	other := res(resource.Endpoint, "b@2")
	tests := map[string]struct {
		then func(c *client, d *resource.Desired, ack func(*reply), sent *reply) *reply
		want []string
	}{
		"until the client answers": {func(c *client, d *resource.Desired, ack func(*reply), sent *reply) *reply {
			if r := change(c, d, second); r != nil {
				return r
			}
			if r := change(c, d, other); r != nil {
				return r
			}
			ack(sent)
			return c.next()
		}, []string{"endpoint b@2", "endpoint service-0000@3"}},
		"not for long": {func(c *client, d *resource.Desired, _ func(*reply), _ *reply) *reply {
			if r := change(c, d, second); r != nil {
				return r
			}
			<-time.After(c.gatherTime)
			return c.next()
		}, []string{"endpoint service-0000@3"}},
		"not what was asked for": {func(c *client, d *resource.Desired, _ func(*reply), _ *reply) *reply {
			if r := change(c, d, second); r != nil {
				return r
			}
			c.requireAnswer(c.topic(resource.Endpoint), "b")
			return c.next()
		}, []string{"endpoint b@1", "endpoint service-0000@3"}},
		"clusters do not wait": {func(c *client, d *resource.Desired, _ func(*reply), _ *reply) *reply {
			return change(c, d, second, res(resource.Cluster, "b@2"))
		}, []string{"cluster b@2"}},
		"listeners come after them": {func(c *client, d *resource.Desired, ack func(*reply), sent *reply) *reply {
			if r := change(c, d, second, res(resource.Listener, "service-0000@2")); r != nil {
				return r
			}
			ack(sent)
			return c.next()
		}, []string{"endpoint service-0000@3"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				c, d, ack := gathering(t)
				sent := change(c, &d, first)
				if diff := cmp.Diff([]string{"endpoint service-0000@2"}, sentNames(sent)); diff != "" {
					t.Fatalf("the first change (-want +got):\n%s", diff)
				}
				if diff := cmp.Diff(tc.want, sentNames(tc.then(c, &d, ack, sent))); diff != "" {
					t.Errorf("sent (-want +got):\n%s", diff)
				}
			})
		})
	}
}

// TestGatheredChangesAreSent uses a real stream, and a client that never ACKs.
func TestGatheredChangesAreSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Options{GatherTime: 50 * time.Millisecond})
	w.want("m/a", "EDS x@1")
	p := w.delta().listen()
	p.send(ask("m/a", "EDS", "x"))
	expect(t, said(p.next()), "EDS x@1")
	for _, version := range []string{"2", "3", "4"} { // none of them is ACKed
		w.want("m/a", "EDS x@"+version)
		expect(t, said(p.next()), "EDS x@"+version)
	}
}
