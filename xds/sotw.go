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

// receiveSotw handles one request of the state-of-the-world protocol. It returns the resources that the client refused
// with it.
func (c *client) receiveSotw(r *discoveryv3.DiscoveryRequest) ([]NACK, error) {
	t, err := c.check(r.GetTypeUrl(), 0, r.GetResourceNames())
	if err != nil {
		return nil, err
	}
	nacks := c.answer(t, r.GetResponseNonce(), r.GetErrorDetail())
	// The names of a request with an older nonce may be outdated. The answer to the last response will repeat them.
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
	return nacks, checkNames(t)
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

// isSentWhole reports whether each response of the type must hold all resources: those that it lacks count as removed.
func isSentWhole(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// canExpress reports whether the state of the world can express r. For types that are not sent whole it has no removals,
// and needs none.
func (c *client) canExpress(r *reply) bool {
	if isSentWhole(r.topic.kind) || len(r.puts) > 0 {
		return true
	}
	return slices.ContainsFunc(r.gone, func(name string) bool { return r.topic.gaps[name].asked })
}

// fullList returns the resources of the response: for clusters and listeners all that the client should have after it,
// including old ones that must not be removed yet; for the other types only new ones. An assignment that does not exist
// is sent as an empty one, since the client waits for it.
func (c *client) fullList(r *reply) []*resource.Resource {
	if !isSentWhole(r.topic.kind) {
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

// state returns the response as a message.
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
