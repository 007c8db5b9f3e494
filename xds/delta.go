package xds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// receiveDelta handles one request of the delta protocol. It returns the resources that the client refuses with it.
func (c *client) receiveDelta(r *discoveryv3.DeltaDiscoveryRequest) ([]NACK, error) {
	subscribe, unsubscribe, versions := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe(), r.GetInitialResourceVersions()
	t, err := c.check(r.GetTypeUrl(), versions, subscribe, unsubscribe)
	if err != nil {
		return nil, err
	}
	// If the nonce is unknown or was answered already, handleAck ignores it. The subscriptions of the request still count.
	nacks := c.handleAck(t, r.GetResponseNonce(), r.GetErrorDetail())
	first := !t.requested
	if t.unserved {
		return nacks, c.askUnserved(t, subscribe, first)
	}
	t.requested = true
	if !first {
		versions = nil
	}
	if first && len(subscribe) == 0 && hasLegacyWildcard(t.kind) {
		subscribe = []string{wildcard}
	}
	c.subscribe(t, subscribe, versions)
	c.unsubscribe(t, unsubscribe) // last: a name in both lists ends unsubscribed, as in Istio and go-control-plane
	if first && t.kind == resource.Endpoint {
		c.resendWarmingEndpoints()
	}
	return nacks, checkNames(t)
}

// resendWarmingEndpoints makes sure that the endpoints of the clusters in flight are sent again. After a reconnect, clusters
// may be sent before the client says which endpoints it has. It has these endpoints then, but the clusters warm until they
// arrive again.
func (c *client) resendWarmingEndpoints() {
	for _, r := range c.topic(resource.Cluster).inFlight {
		c.resendEndpoints(r)
	}
}

// hasLegacyWildcard reports whether a first request without names subscribes to all resources of the type.
func hasLegacyWildcard(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// subscribe adds names to the subscription. versions are those that the client had when it connected. If the client is
// subscribed to a name already, it still gets a response about it.
func (c *client) subscribe(t *topic, list []string, versions map[string]string) {
	added := make([]string, 0, len(list))
	if len(list) > 1 && len(versions) == 0 {
		t.reserveGaps(len(list))
	}
	for _, name := range list {
		if name == wildcard {
			continue
		}
		now := c.get(t, name)
		if now != nil {
			name = now.Name // all streams share this string
		}
		g := gap{mustAnswer: true}
		if v, ok := versions[name]; ok {
			g = gapOfVersion(v)
		} else if t.subscribes(name) {
			c.requireAnswer(t, name)
			g = t.gaps[name]
		}
		t.setGap(name, g, now)
		added = append(added, name)
	}
	t.names = t.names.add(added...)
	if slices.Contains(list, wildcard) {
		c.subscribeAll(t, versions)
	}
}

// subscribeAll adds the wildcard to the subscription.
func (c *client) subscribeAll(t *topic, versions map[string]string) {
	for name, v := range versions {
		if !t.names.has(name) {
			t.setGap(name, gapOfVersion(v), c.get(t, name))
		}
	}
	all := c.all(t)
	if len(versions) == 0 {
		t.reserveGaps(len(all))
	}
	for _, r := range all {
		_, has := versions[r.Name]
		switch {
		case t.wildcard:
			c.requireAnswer(t, r.Name)
		case !has && !t.names.has(r.Name):
			t.setGap(r.Name, gap{}, r)
		}
	}
	// An Envoy that has just started waits for a response, even an empty one. One that has resources does not.
	t.answerDue = len(versions) == 0
	t.wildcard = true
}

// gapOfVersion returns the gap of a name of which the client has version v, as it says itself.
func gapOfVersion(v string) gap { return gap{version: v, uncertain: v == ""} }

// unsubscribe removes names from the subscription.
func (c *client) unsubscribe(t *topic, list []string) {
	dropped := (*names)(nil).add(list...)
	if dropped.has(wildcard) {
		t.wildcard = false
		t.dropUnless(t.names.has)
	}
	for _, name := range dropped.all() {
		switch {
		case !t.names.has(name):
		case t.wildcard: // the wildcard still includes the name: tell the client what there is
			c.requireAnswer(t, name)
		default:
			t.dropGap(name)
		}
	}
	t.names = t.names.remove(dropped)
}
