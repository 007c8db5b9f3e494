package xds

import (
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// receiveDelta handles one request of the delta protocol. It returns the resources that the proxy refuses with it.
func (p *proxy) receiveDelta(r *discoveryv3.DeltaDiscoveryRequest) ([]NACK, error) {
	subscribe, unsubscribe, versions := r.GetResourceNamesSubscribe(), r.GetResourceNamesUnsubscribe(),
		r.GetInitialResourceVersions()
	s, err := p.check(r.GetTypeUrl())
	if err != nil {
		return nil, err
	}
	// If the nonce is unknown or was answered already, handleAck ignores it. The subscriptions of the request still apply.
	nacks := p.handleAck(s, r.GetResponseNonce(), r.GetErrorDetail())
	first := !s.requested
	if s.unserved {
		return nacks, p.requestUnserved(s, subscribe, first)
	}
	s.requested = true
	if !first {
		versions = nil
	}
	if first && len(subscribe) == 0 && hasLegacyWildcard(s.kind) {
		subscribe = []string{wildcard}
	}
	p.subscribe(s, subscribe, versions)
	p.unsubscribe(s, unsubscribe) // last: a name in both lists ends unsubscribed, as in Istio and go-control-plane
	if first && s.kind == resource.Endpoint {
		p.resendWarmingEndpoints()
	}
	return nacks, checkNames(s)
}

// resendWarmingEndpoints makes sure that the endpoints of the clusters in flight are sent again. After a reconnect,
// clusters may be sent before the proxy reports its endpoints. Although it has these endpoints, the clusters warm until
// the endpoints arrive again.
func (p *proxy) resendWarmingEndpoints() {
	for _, r := range p.subscription(resource.Cluster).inFlight {
		p.resendEndpoints(r)
	}
}

// hasLegacyWildcard reports whether a first request without names subscribes to all resources of the type.
func hasLegacyWildcard(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// subscribe adds names to the subscription. versions are the versions that the proxy had when it connected. If the
// proxy is subscribed to a name already, it still gets a response about it.
func (p *proxy) subscribe(s *subscription, list []string, versions map[string]string) {
	added := make([]string, 0, len(list))
	if len(list) > 1 && len(versions) == 0 {
		s.reservePending(len(list))
	}
	for _, name := range list {
		if name == wildcard {
			continue
		}
		now := p.get(s, name)
		if now != nil {
			name = now.Name // all streams share this string
		}
		u := update{mustMention: true}
		if v, ok := versions[name]; ok {
			u = updateFromVersion(v)
		} else if s.subscribes(name) {
			p.requireMention(s, name)
			u = s.pending[name]
		}
		s.setPending(name, u, now)
		added = append(added, name)
	}
	p.asked += len(list) + len(versions)
	s.names = s.names.add(added...)
	if slices.Contains(list, wildcard) {
		p.subscribeAll(s, versions)
	}
}

// subscribeAll adds the wildcard to the subscription.
func (p *proxy) subscribeAll(s *subscription, versions map[string]string) {
	for name, v := range versions {
		if !s.names.has(name) {
			now := p.get(s, name)
			s.setPending(name, updateFromVersion(v), now)
			if now == nil {
				p.statedBytes += len(name) + nameOverhead
			}
		}
	}
	all := p.all(s)
	if len(versions) == 0 {
		s.reservePending(len(all))
	}
	for _, r := range all {
		_, ok := versions[r.Name]
		switch {
		case s.wildcard:
			p.requireMention(s, r.Name)
		case !ok && !s.names.has(r.Name):
			p.asked++
			s.setPending(r.Name, update{}, r)
		}
	}
	// An Envoy that has just started waits for a response, even an empty one. One that has resources does not.
	s.responseDue = len(versions) == 0
	s.wildcard = true
}

// maxVersion is an upper bound, in bytes, of this server's versions.
const maxVersion = 64

// updateFromVersion returns the update of a name for which the proxy reports version v. It ignores a version that is
// too long to be this server's.
func updateFromVersion(v string) update {
	if v == "" || len(v) > maxVersion {
		return update{uncertain: true}
	}
	return update{version: v}
}

// unsubscribe removes names from the subscription.
func (p *proxy) unsubscribe(s *subscription, list []string) {
	p.asked += len(list)
	dropped := (*names)(nil).add(list...)
	if dropped.has(wildcard) {
		s.wildcard = false
		s.dropUnless(s.names.has)
	}
	for _, name := range dropped.all() {
		switch {
		case !s.names.has(name):
		case s.wildcard: // the wildcard still includes the name: send the proxy what exists
			p.requireMention(s, name)
		default:
			s.dropPending(name)
		}
	}
	s.names = s.names.remove(dropped)
}
