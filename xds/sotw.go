package xds

import (
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// receiveSotw takes one request of the state-of-the-world protocol. It returns what the client refused with it.
func (c *client) receiveSotw(r *discoveryv3.DiscoveryRequest) ([]NACK, error) {
	t, err := c.check(r.GetTypeUrl(), 0, r.GetResourceNames())
	if err != nil {
		return nil, err
	}
	nacks := c.answer(t, r.GetResponseNonce(), r.GetErrorDetail())
	// Only an answer to the last response knows it. The names of an older one are older, too: the answer to the last
	// response repeats them.
	if r.GetResponseNonce() != t.lastNonce {
		return nacks, nil
	}
	first := !t.begun
	t.begun = true
	t.named = t.named || len(r.GetResourceNames()) > 0
	list := (*names)(nil).add(r.GetResourceNames()...)
	all := list.has(wildcard) || !t.named && hasLegacyWildcard(t.kind)
	list = list.remove((*names)(nil).add(wildcard))
	c.resubscribe(t, list, all)
	if first && (all || list.len() > 0) {
		t.owed = true
	}
	return nacks, enough(t)
}

// resubscribe replaces the subscription by list, and by everything if all is set.
func (c *client) resubscribe(t *topic, list *names, all bool) {
	before, beforeAll := t.names, t.wildcard
	if list == before && all == beforeAll {
		return
	}
	t.names, t.wildcard = list, all
	for name := range t.gaps {
		if !t.subscribes(name) {
			t.forget(name)
		}
	}
	for _, name := range list.all() {
		if !beforeAll && !before.has(name) {
			t.note(name, gap{asked: true}, c.get(t, name))
		}
	}
	if all && !beforeAll {
		for _, r := range c.all(t) {
			if !before.has(r.Name) && !list.has(r.Name) {
				t.note(r.Name, gap{}, r)
			}
		}
	}
}

// isFull says whether a response of the type must hold everything: what it does not hold is gone.
func isFull(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// sayable says whether the state of the world has words for r: what is gone of the types that are never sent whole
// cannot be told, and need not.
func (c *client) sayable(r *reply) bool {
	if isFull(r.topic.kind) || len(r.puts) > 0 {
		return true
	}
	return slices.ContainsFunc(r.gone, func(name string) bool { return r.topic.gaps[name].asked })
}

// fullOf is what the response holds: of clusters and listeners all that the client should have after it, old ones
// that may not go yet included, of the others what is new. An assignment that does not exist is an empty one, since
// the client would wait for it.
func (c *client) fullOf(r *reply) []*resource.Resource {
	if !isFull(r.topic.kind) {
		full := slices.Clip(r.puts)
		for _, name := range r.gone {
			if r.topic.kind == resource.Endpoint && r.topic.gaps[name].asked {
				full = append(full, emptyAssignment(name))
			}
		}
		return full
	}
	var full []*resource.Resource
	keep := func(name string, now *resource.Resource) {
		g, differs := r.topic.gaps[name]
		if i := r.indexOf(name); i >= len(r.puts) {
			return
		} else if i >= 0 {
			now = r.puts[i]
		} else if differs {
			now = g.last
		}
		if now != nil {
			full = append(full, now)
		}
	}
	for _, now := range c.subscribed(r.topic) {
		keep(now.Name, now)
	}
	for name, g := range r.topic.gaps {
		if g.now == nil {
			keep(name, nil)
		}
	}
	slices.SortFunc(full, byName)
	return full
}

// subscribed returns what the client should have of a type.
func (c *client) subscribed(t *topic) []*resource.Resource {
	if t.wildcard {
		return c.all(t)
	}
	var list []*resource.Resource
	for _, name := range t.names.all() {
		if r := c.get(t, name); r != nil {
			list = append(list, r)
		}
	}
	return list
}

func emptyAssignment(name string) *resource.Resource {
	return resource.New(resource.Endpoint, name, "0", resource.Any(&endpointv3.ClusterLoadAssignment{ClusterName: name}).GetValue())
}

// state is the response on the wire.
func (r *reply) state() *discoveryv3.DiscoveryResponse {
	bodies := make([]*anypb.Any, 0, len(r.full))
	hash := sha256.New()
	for _, p := range r.full {
		bodies = append(bodies, p.Body)
		_, _ = io.WriteString(hash, p.Name+"\x00"+p.Version+"\x00") // a hash takes everything
	}
	return &discoveryv3.DiscoveryResponse{
		TypeUrl: string(r.topic.kind), Nonce: r.nonce, Resources: bodies, VersionInfo: hex.EncodeToString(hash.Sum(nil)[:8]),
	}
}
