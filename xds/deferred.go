package xds

import (
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// deferred returns the assignments of t that must not change yet, by name.
//
// While a new version of a Cluster warms, Envoy also gives new endpoints to the version in use, which serves until the
// new one is warm. If only the new version accepts the peers of these endpoints, the version in use rejects them. So
// the new version warms with the proxy's current endpoints, and new endpoints are sent after its ACK.
//
// If a new version no longer accepts a peer, that peer's endpoints must be removed at the latest when the Cluster
// changes, so they are not deferred. If such a version also accepts more peers, no order is right.
func (p *proxy) deferred(s *subscription) map[string]bool {
	if s.kind != resource.Endpoint {
		return nil
	}
	var deferred map[string]bool
	inFlight := p.subscription(resource.Cluster).inFlight
	for n, r := range slices.Backward(inFlight) {
		for _, m := range r.resources {
			cluster := m.resource
			if _, newer := deferred[cluster.Endpoints]; newer || cluster.Endpoints == "" || len(cluster.Peers) == 0 {
				continue
			}
			if deferred == nil {
				deferred = map[string]bool{}
			}
			deferred[cluster.Endpoints] = acceptsMore(cluster, inFlight[:n+1])
		}
	}
	return deferred
}

// acceptsMore reports whether a Cluster in the last of these responses accepts all peers of each version that the proxy
// may still use, and more peers than at least one of them.
func acceptsMore(cluster *resource.Resource, inFlight []*response) bool {
	grows := false
	for _, r := range inFlight {
		m := r.mention(cluster.Name)
		if m == nil || m.resource == nil {
			continue
		}
		last := m.before.last
		if last == nil || !containsAll(cluster.Peers, last.Peers) {
			return false
		}
		grows = grows || len(cluster.Peers) > len(last.Peers)
	}
	return grows
}

// containsAll reports whether list, which is sorted, contains all strings of some.
func containsAll(list, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool {
		_, found := slices.BinarySearch(list, s)
		return !found
	})
}

// actionUnlessDeferred is like action, but it sends a deferred assignment only if a response must mention it, and then
// in the version that the proxy has.
func (s *subscription) actionUnlessDeferred(u update, deferred bool) action {
	a := s.action(u)
	switch {
	case !deferred || a.send == nil || u.last == nil || s.refuses(u.last):
		return a // not deferred, or no other version can be sent instead
	case u.mustMention || u.uncertain:
		return action{send: u.last}
	}
	return action{}
}
