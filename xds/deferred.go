package xds

import (
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// deferred tells which assignments of t must not change yet, by name.
//
// While a new version of a Cluster warms, Envoy gives new endpoints to the version in use, too, which still serves for a
// moment. If only the new version accepts the peers of these endpoints, the version in use refuses them. So the new version
// warms with the endpoints that the client has, and new endpoints are sent after its ACK.
//
// If a new version no longer accepts a peer, the endpoints of that peer must be removed at the latest when the Cluster
// changes, so they are not deferred. If a new version also accepts more peers, no order is right.
func (c *client) deferred(t *topic) map[string]bool {
	if t.kind != resource.Endpoint {
		return nil
	}
	var deferred map[string]bool
	inFlight := c.topic(resource.Cluster).inFlight
	for n, r := range slices.Backward(inFlight) {
		for _, p := range r.puts {
			if _, newer := deferred[p.Endpoints]; newer || p.Endpoints == "" || len(p.Peers) == 0 {
				continue
			}
			if deferred == nil {
				deferred = map[string]bool{}
			}
			deferred[p.Endpoints] = acceptsMore(p, inFlight[:n+1])
		}
	}
	return deferred
}

// acceptsMore reports whether p, a Cluster in the last of these replies, accepts all peers of each version that the client
// may still use, and more peers than at least one of them.
func acceptsMore(p *resource.Resource, inFlight []*reply) bool {
	grows := false
	for _, r := range inFlight {
		i, found := slices.BinarySearchFunc(r.puts, p, byName)
		if !found {
			continue
		}
		last := r.before[i].last
		if last == nil || !containsAll(p.Peers, last.Peers) {
			return false
		}
		grows = grows || len(p.Peers) > len(last.Peers)
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

// actionUnlessDeferred is like action, but a deferred assignment is sent only if a response must mention it, and then in
// the version that the client has.
func (t *topic) actionUnlessDeferred(g gap, deferred bool) action {
	a := t.action(g)
	switch {
	case !deferred || a.put == nil || g.last == nil || t.refuses(g.last):
		return a // not deferred, or there is no version that could be sent instead
	case g.mustAnswer || g.uncertain:
		return action{put: g.last}
	}
	return action{}
}
