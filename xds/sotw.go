package xds

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"slices"

	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// sameNames is how many repeated names in a request cost as much work as one new name.
const sameNames = 10

// receiveSotw handles one request of the state-of-the-world protocol. It returns the resources that the proxy refuses
// with it.
func (p *proxy) receiveSotw(r *discoveryv3.DiscoveryRequest) ([]NACK, error) {
	s, err := p.check(r.GetTypeUrl())
	if err != nil {
		return nil, err
	}
	nacks := p.handleAck(s, r.GetResponseNonce(), r.GetErrorDetail())
	if !p.acked {
		p.asked += len(r.GetResourceNames()) / sameNames
	}
	// Whatever its nonce, a request lists all names that the proxy subscribes to, and is newer than the previous request.
	// If names in a request with an old nonce were ignored, a proxy whose ACKs are slower than new responses would never
	// get a new name (envoyproxy/envoy#10363).
	//
	// A request without a nonce from a proxy that has answered each response means that the proxy has started over and
	// waits for all names (gRPC-Java before grpc/grpc-java#11796, and grpc-node). A proxy that has not answered may not
	// have received the first response yet.
	first := !s.requested || r.GetResponseNonce() == "" && s.hasAnswered && len(s.inFlight) == 0
	if s.unserved {
		return nacks, p.requestUnserved(s, nil, first)
	}
	s.requested = true
	s.named = s.named && !first || len(r.GetResourceNames()) > 0
	list := (*names)(nil).add(r.GetResourceNames()...)
	all := list.has(wildcard) || !s.named && hasLegacyWildcard(s.kind)
	list = list.remove((*names)(nil).add(wildcard))
	if first {
		p.requireMentions(s, list, all)
	}
	p.resubscribe(s, list, all)
	if first && (all || list.len() > 0) {
		s.responseDue = true
	}
	return nacks, checkNames(s)
}

// requireMentions makes sure that a response mentions the names that the proxy subscribes to already and requests
// again. A type that is sent whole does not need this.
func (p *proxy) requireMentions(s *subscription, list *names, all bool) {
	if isSentWhole(s.kind) {
		return
	}
	for _, name := range list.all() {
		if s.subscribes(name) {
			p.requireMention(s, name)
		}
	}
	if !all || !s.wildcard {
		return
	}
	for _, r := range p.all(s) {
		p.requireMention(s, r.Name)
	}
}

// resubscribe replaces the subscription by the names in list, and the wildcard if all is set.
func (p *proxy) resubscribe(s *subscription, list *names, all bool) {
	before, beforeAll := s.names, s.wildcard
	if list == before && all == beforeAll {
		return
	}
	s.names, s.wildcard = list, all
	p.asked += list.len() / sameNames
	s.dropUnless(s.subscribes)
	for _, name := range list.all() {
		if !beforeAll && !before.has(name) {
			p.asked++
			s.setPending(name, update{mustMention: true}, p.get(s, name))
		}
	}
	if all && !beforeAll {
		for _, r := range p.all(s) {
			if !before.has(r.Name) && !list.has(r.Name) {
				p.asked++
				s.setPending(r.Name, update{}, r)
			}
		}
	}
}

// isSentWhole reports whether each SotW response of the type must contain all resources. Envoy removes those that are
// missing from a response.
func isSentWhole(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// canExpress reports whether a SotW response can express r. Types that are not sent whole have no removals, and need
// none.
func canExpress(r *response) bool {
	if isSentWhole(r.subscription.kind) || len(r.resources) > 0 {
		return true
	}
	return slices.ContainsFunc(r.removed, func(m mention) bool { return m.before.mustMention })
}

// fullList returns the resources of a SotW response. For clusters and listeners these are all that the proxy should
// have after it, including old ones that must not be removed yet. For the other types they are only those that the
// proxy lacks. If the proxy waits for an assignment that does not exist, it gets an empty one.
func (p *proxy) fullList(r *response) []*resource.Resource {
	if !isSentWhole(r.subscription.kind) {
		return partialList(r)
	}
	var full []*resource.Resource
	keep := func(name string, now *resource.Resource) {
		if m := r.mention(name); m != nil {
			now = m.resource
		} else if u, differs := r.subscription.update(name); differs {
			now = u.last
		}
		if now != nil {
			full = append(full, now)
		}
	}
	for _, now := range p.subscribed(r.subscription) {
		keep(now.Name, now)
	}
	for _, updates := range []map[string]update{r.subscription.pending, r.subscription.held} {
		for name, u := range updates {
			if u.now == nil {
				keep(name, nil)
			}
		}
	}
	slices.SortFunc(full, func(a, b *resource.Resource) int { return cmp.Compare(a.Name, b.Name) })
	return full
}

// partialList is fullList for a type that is not sent whole.
func partialList(r *response) []*resource.Resource {
	list := make([]*resource.Resource, 0, len(r.resources))
	for _, m := range r.resources {
		list = append(list, m.resource)
	}
	for _, m := range r.removed {
		if r.subscription.kind == resource.Endpoint && m.name != "" && m.before.mustMention {
			list = append(list, emptyAssignment(m.name))
		}
	}
	return list
}

// subscribed returns the resources of a type that the proxy subscribes to and should have.
func (p *proxy) subscribed(s *subscription) []*resource.Resource {
	if s.wildcard {
		return p.all(s)
	}
	var list []*resource.Resource
	for _, name := range s.names.all() {
		if r := p.get(s, name); r != nil {
			list = append(list, r)
		}
	}
	return list
}

// emptyAssignment returns an assignment without endpoints.
func emptyAssignment(name string) *resource.Resource {
	return resource.New(resource.Endpoint, name,
		"0", resource.Any(&endpointv3.ClusterLoadAssignment{ClusterName: name}).GetValue())
}

// state returns the SotW response. Its version is a hash of its resources.
func (r *response) state() *discoveryv3.DiscoveryResponse {
	bodies := make([]*anypb.Any, 0, len(r.full))
	hash := sha256.New()
	for _, res := range r.full {
		bodies = append(bodies, res.Body)
		_, _ = io.WriteString(hash, res.Name+"\x00"+res.Version+"\x00") // writing to a hash never fails
	}
	return &discoveryv3.DiscoveryResponse{
		TypeUrl: string(r.subscription.kind), Nonce: r.nonce, Resources: bodies,
		VersionInfo: hex.EncodeToString(hash.Sum(nil)[:8]),
	}
}
