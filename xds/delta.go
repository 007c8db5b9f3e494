package xds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// receiveDelta takes one request of the delta protocol. It returns what the client refused with it.
func (c *client) receiveDelta(r *discoveryv3.DeltaDiscoveryRequest) ([]NACK, error) {
	subscribe, unsubscribe, versions := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe(), r.GetInitialResourceVersions()
	t, err := c.check(r.GetTypeUrl(), len(versions), subscribe, unsubscribe)
	if err != nil {
		return nil, err
	}
	// A nonce that is none of ours, or was answered already, says nothing; but what the request subscribes to counts.
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
		c.askWarming()
	}
	return nacks, enough(t)
}

// askWarming makes sure that clusters get their endpoints which were sent before the client, which reconnected, said
// that it has these endpoints. It does, but the clusters warm until they come again.
func (c *client) askWarming() {
	for _, r := range c.topic(resource.Cluster).inFlight {
		c.askEndpoints(r)
	}
}

// hasLegacyWildcard says whether a first request without names asks for everything.
func hasLegacyWildcard(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// subscribe adds names. versions is what the client had when it connected. A name that it had subscribed to already is
// answered again.
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
			name = now.Name // one string for all streams
		}
		g := gap{asked: true}
		if v, ok := versions[name]; ok {
			g = gapOfVersion(v)
		} else if t.subscribes(name) {
			c.ask(t, name)
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
			c.ask(t, r.Name)
		case !has && !t.names.has(r.Name):
			t.note(r.Name, gap{}, r)
		}
	}
	// Envoy waits for an answer at its first start, though there may be nothing; one that has something does not.
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
		case t.wildcard: // the client cannot know whether it still gets the resource: tell it
			c.ask(t, name)
		default:
			t.forget(name)
		}
	}
	t.names = t.names.remove(gone)
}
