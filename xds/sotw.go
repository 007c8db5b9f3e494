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

// receiveSotw handles one request of the state-of-the-world protocol. It returns the resources that the client refuses
// with it.
func (c *client) receiveSotw(r *discoveryv3.DiscoveryRequest) ([]NACK, error) {
	t, err := c.check(r.GetTypeUrl(), nil, r.GetResourceNames())
	if err != nil {
		return nil, err
	}
	nacks := c.handleAck(t, r.GetResponseNonce(), r.GetErrorDetail())
	// Whatever its nonce, a request has all names that the client subscribes to, and it is newer than the request before. If
	// the names of one with an old nonce were ignored, a client that needs longer for its ACK than the next response takes
	// to come would never get a new name (envoyproxy/envoy#10363).
	//
	// Without a nonce although it has answered each response, the client has begun again, and waits for all it names (gRPC-Java
	// before grpc/grpc-java#11796, and grpc-node). One that has not may not have seen the first response yet.
	first := !t.requested || r.GetResponseNonce() == "" && t.answered && len(t.inFlight) == 0
	if t.unserved {
		return nacks, c.askUnserved(t, nil, first)
	}
	t.requested = true
	t.named = t.named && !first || len(r.GetResourceNames()) > 0
	list := (*names)(nil).add(r.GetResourceNames()...)
	all := list.has(wildcard) || !t.named && hasLegacyWildcard(t.kind)
	list = list.remove((*names)(nil).add(wildcard))
	if first {
		c.requireAnswers(t, list, all)
	}
	c.resubscribe(t, list, all)
	if first && (all || list.len() > 0) {
		t.answerDue = true
	}
	return nacks, checkNames(t)
}

// requireAnswers makes sure that a response mentions what the client subscribes to already and asks for again. A type that is
// sent whole needs nothing for that.
func (c *client) requireAnswers(t *topic, list *names, all bool) {
	if isSentWhole(t.kind) {
		return
	}
	for _, name := range list.all() {
		if t.subscribes(name) {
			c.requireAnswer(t, name)
		}
	}
	if !all || !t.wildcard {
		return
	}
	for _, r := range c.all(t) {
		c.requireAnswer(t, r.Name)
	}
}

// resubscribe replaces the subscription by the names in list, and the wildcard if all is set.
func (c *client) resubscribe(t *topic, list *names, all bool) {
	before, beforeAll := t.names, t.wildcard
	if list == before && all == beforeAll {
		return
	}
	t.names, t.wildcard = list, all
	t.dropUnless(t.subscribes)
	for _, name := range list.all() {
		if !beforeAll && !before.has(name) {
			t.setGap(name, gap{mustAnswer: true}, c.get(t, name))
		}
	}
	if all && !beforeAll {
		for _, r := range c.all(t) {
			if !before.has(r.Name) && !list.has(r.Name) {
				t.setGap(r.Name, gap{}, r)
			}
		}
	}
}

// isSentWhole reports whether each SotW response of the type must contain all resources. Envoy removes those that it lacks.
func isSentWhole(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// canExpress reports whether a SotW response can say what r says. For types that are not sent whole there are no removals,
// and none are needed.
func (c *client) canExpress(r *reply) bool {
	if isSentWhole(r.topic.kind) || len(r.puts) > 0 {
		return true
	}
	return slices.ContainsFunc(r.removed, func(name string) bool { return r.topic.gaps[name].mustAnswer })
}

// fullList returns the resources of a SotW response. For clusters and listeners these are all that the client should have
// after it, including old ones that must not be removed yet. For the other types they are only those that the client lacks.
// If the client waits for an assignment that does not exist, it gets an empty one.
func (c *client) fullList(r *reply) []*resource.Resource {
	if !isSentWhole(r.topic.kind) {
		full := slices.Clip(r.puts)
		for _, name := range r.removed {
			if r.topic.kind == resource.Endpoint && name != "" && r.topic.gaps[name].mustAnswer {
				full = append(full, emptyAssignment(name))
			}
		}
		return full
	}
	var full []*resource.Resource
	keep := func(name string, now *resource.Resource) {
		g, differs := r.topic.gap(name)
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
	for _, gaps := range []map[string]gap{r.topic.gaps, r.topic.held} {
		for name, g := range gaps {
			if g.now == nil {
				keep(name, nil)
			}
		}
	}
	slices.SortFunc(full, byName)
	return full
}

// subscribed returns the resources of a type that the client subscribes to and should have.
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

// emptyAssignment returns an assignment without endpoints.
func emptyAssignment(name string) *resource.Resource {
	return resource.New(resource.Endpoint, name, "0", resource.Any(&endpointv3.ClusterLoadAssignment{ClusterName: name}).GetValue())
}

// state returns the SotW response. Its version is a hash of its resources.
func (r *reply) state() *discoveryv3.DiscoveryResponse {
	bodies := make([]*anypb.Any, 0, len(r.full))
	hash := sha256.New()
	for _, p := range r.full {
		bodies = append(bodies, p.Body)
		_, _ = io.WriteString(hash, p.Name+"\x00"+p.Version+"\x00") // writing to a hash never fails
	}
	return &discoveryv3.DiscoveryResponse{
		TypeUrl: string(r.topic.kind), Nonce: r.nonce, Resources: bodies, VersionInfo: hex.EncodeToString(hash.Sum(nil)[:8]),
	}
}
