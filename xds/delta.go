package xds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// receiveDelta handles one request of the delta protocol. It returns the resources that the client refused with it.
func (c *client) receiveDelta(r *discoveryv3.DeltaDiscoveryRequest) ([]NACK, error) {
	subscribe, unsubscribe, versions := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe(), r.GetInitialResourceVersions()
	t, err := c.check(r.GetTypeUrl(), len(versions), subscribe, unsubscribe)
	if err != nil {
		return nil, err
	}
	// An unknown nonce, or one that was answered already, is ignored, but not the subscriptions of the same request.
	nacks := c.answer(t, r.GetResponseNonce(), r.GetErrorDetail())
	first := !t.begun
	t.begun = true
	if !first {
		versions = nil
	}
	c.unsubscribe(t, unsubscribe)
	if first && len(subscribe) == 0 && hasLegacyWildcard(t.kind) {
		subscribe = []string{wildcard}
	}
	c.subscribe(t, subscribe, versions)
	if first && t.kind == resource.Endpoint {
		c.resendWarmingEndpoints()
	}
	return nacks, checkNames(t)
}

// resendWarmingEndpoints sends the endpoints of the clusters in flight again. They were sent before the client, which has
// reconnected, said which endpoints it has; it has them, but the clusters warm until they arrive again.
func (c *client) resendWarmingEndpoints() {
	for _, r := range c.topic(resource.Cluster).inFlight {
		c.resendEndpoints(r)
	}
}

// hasLegacyWildcard reports whether a first request without names subscribes to everything.
func hasLegacyWildcard(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// subscribe adds names to the subscription. versions are the versions that the client had when it connected. A name that
// it is already subscribed to is answered again.
func (c *client) subscribe(t *topic, list []string, versions map[string]string) {
	added := make([]string, 0, len(list))
	if len(list) > 1 && len(versions) == 0 {
		t.expect(len(list))
	}
	for _, name := range list {
		if name == wildcard {
			continue
		}
		now := c.get(t, name)
		if now != nil {
			name = now.Name // so that all streams share one string
		}
		g := gap{asked: true}
		if v, ok := versions[name]; ok {
			g = gapOfVersion(v)
		} else if t.subscribes(name) {
			c.requireAnswer(t, name)
			g = t.gaps[name]
		}
		t.note(name, g, now)
		added = append(added, name)
	}
	t.names = t.names.add(added...)
	if slices.Contains(list, wildcard) {
		c.subscribeAll(t, versions)
	}
}

func (c *client) subscribeAll(t *topic, versions map[string]string) {
	for name, v := range versions {
		if !t.names.has(name) {
			t.note(name, gapOfVersion(v), c.get(t, name))
		}
	}
	all := c.all(t)
	if len(versions) == 0 {
		t.expect(len(all))
	}
	for _, r := range all {
		_, has := versions[r.Name]
		switch {
		case t.wildcard:
			c.requireAnswer(t, r.Name)
		case !has && !t.names.has(r.Name):
			t.note(r.Name, gap{}, r)
		}
	}
	// An Envoy that has just started waits for an answer, even an empty one; one that has resources does not.
	t.owed = len(versions) == 0
	t.wildcard = true
}

func gapOfVersion(v string) gap { return gap{version: v, unsure: v == ""} }

func (c *client) unsubscribe(t *topic, list []string) {
	gone := (*names)(nil).add(list...)
	if gone.has(wildcard) {
		t.wildcard = false
		for name := range t.gaps {
			if !t.names.has(name) {
				t.forget(name)
			}
		}
	}
	for _, name := range gone.all() {
		switch {
		case !t.names.has(name):
		case t.wildcard: // the wildcard may still include the resource: tell the client
			c.requireAnswer(t, name)
		default:
			t.forget(name)
		}
	}
	t.names = t.names.remove(gone)
}
