package featuretest

import (
	"fmt"
	"slices"
	"strings"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	"google.golang.org/protobuf/proto"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// mostRounds is the number of rounds, each with messages, after which a test assumes that the server never stops
// sending.
const mostRounds = 500

// Sync returns when everything that the server has to send has arrived.
func (c *Client) Sync() {
	c.t.Helper()
	synctest.Wait()
	for range mostRounds {
		before := c.responses()
		time.Sleep(gatherTime)
		synctest.Wait()
		if c.responses() == before {
			c.alive()
			return
		}
	}
	c.t.Fatalf("%v: the server does not stop sending", c)
}

// Sent waits as Sync does, and compares all responses since the last Sent, in their order. Each line has the type, the
// names of changed resources, and the names of removed resources with a minus. State-of-the-world responses cannot
// remove endpoints and routes, so these lines are not expected there.
func (c *Client) Sent(want ...string) {
	c.t.Helper()
	c.Sync()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.envoy.Protocol == envoysim.SotW {
		want = slices.Clone(want)
		want = slices.DeleteFunc(want, func(line string) bool {
			return strings.HasPrefix(line, "endpoint -") || strings.HasPrefix(line, "route -")
		})
	}
	got := c.log
	c.log = nil
	if !slices.Equal(got, want) {
		c.t.Errorf("%v: responses\n\t%s\nwant\n\t%s", c, strings.Join(got, "\n\t"), strings.Join(want, "\n\t"))
	}
}

// Expectation checks properties of one resource once everything has arrived.
type Expectation struct {
	c *Client
	n resource.Name
}

// Expect returns the Expectation for a resource.
func (c *Client) Expect(t resource.Type, name string) Expectation {
	return Expectation{c: c, n: resource.Name{Type: t, Name: name}}
}

func (e Expectation) check(what string, m proto.Message, holds func() bool) {
	e.c.t.Helper()
	has := func() bool {
		e.c.mu.Lock()
		defer e.c.mu.Unlock()
		r := e.c.envoy.Get(e.n)
		return r != nil && r.Body.UnmarshalTo(m) == nil && holds()
	}
	synctest.Wait()
	if has() {
		return
	}
	if e.c.Sync(); !has() {
		e.c.t.Fatalf("%v: no %s %s with %s, log: %q", e.c, e.n.Type.Short(), e.n.Name, what, e.c.log)
	}
}

// Addresses are the addresses of endpoints, in their order: ip:port, followed by "+mtls" if they have a sidecar.
func (e Expectation) Addresses(want ...string) {
	e.c.t.Helper()
	m := &endpointv3.ClusterLoadAssignment{}
	e.check(fmt.Sprintf("addresses %q", want), m, func() bool { return slices.Equal(addresses(m), want) })
}

// First is the first address of the endpoints.
func (e Expectation) First(want string) {
	e.c.t.Helper()
	m := &endpointv3.ClusterLoadAssignment{}
	e.check(fmt.Sprintf("first address %q", want), m, func() bool {
		got := addresses(m)
		return len(got) > 0 && got[0] == want
	})
}

// Identities are the identities that a cluster accepts, sorted; none if it uses plain text.
func (e Expectation) Identities(want ...string) {
	e.c.t.Helper()
	m := &clusterv3.Cluster{}
	e.check(fmt.Sprintf("identities %q", want), m, func() bool { return slices.Equal(identities(m), want) })
}

// Has returns type, name and version of each resource of the client, sorted. It leaves out routes that no listener asks
// for, since state-of-the-world responses cannot remove them.
func (c *Client) Has() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	routes := map[string]bool{}
	has := c.envoy.All()
	for _, r := range has {
		for _, name := range r.Routes {
			routes[name] = true
		}
	}
	var all []string
	for n, r := range has {
		if n.Type != resource.Route || routes[n.Name] {
			all = append(all, n.Type.Short()+" "+n.Name+" "+r.Version)
		}
	}
	slices.Sort(all)
	return all
}

// String returns the name of the client.
func (c *Client) String() string { return fmt.Sprintf("%s (%s)", c.id, c.envoy.Protocol) }
