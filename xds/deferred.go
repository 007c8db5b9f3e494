package xds

import (
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// deferred returns the names of the assignments of t that must not change yet. If a Cluster in flight accepts more peers
// than the one in use, Envoy gives new endpoints to both, and the one in use, which refuses the new peers, still serves
// for a moment. So the new Cluster warms with the endpoints that the client has, and the new ones follow after its ACK. If
// a Cluster loses a peer, its endpoints must be removed no later than that; if it does both, no order is right.
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

// acceptsMore reports whether p, a Cluster in the last of these replies, accepts all peers of the versions that the client
// may be using meanwhile, and more.
func acceptsMore(p *resource.Resource, inFlight []*reply) bool {
	grows := false
	for _, r := range inFlight {
		i, found := slices.BinarySearchFunc(r.puts, p, byName)
		if !found {
			continue
		}
		last := r.had[i].last
		if last == nil || !containsAll(p.Peers, last.Peers) {
			return false
		}
		grows = grows || len(p.Peers) > len(last.Peers)
	}
	return grows
}

// containsAll reports whether list, which is sorted, contains every string of some.
func containsAll(list, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool {
		_, found := slices.BinarySearch(list, s)
		return !found
	})
}

// stepUnlessDeferred is step, but a deferred assignment is sent only as the client has it, if it needs an answer.
func (t *topic) stepUnlessDeferred(g gap, deferred bool) step {
	s := t.step(g)
	switch {
	case !deferred || s.put == nil || g.last == nil || t.refuses(g.last):
		return s // not deferred, or there is no version that the client has and could get instead
	case g.asked || g.unsure:
		return step{put: g.last}
	}
	return step{}
}
