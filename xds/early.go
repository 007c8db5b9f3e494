package xds

import (
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// early returns the names of t's resources that must not change yet: assignments. Where a Cluster on its way accepts more peers than
// the one in use, Envoy gives new endpoints to both of them, and the one in use, which refuses them, goes on serving for
// a moment. So the new one warms with the endpoints that the client has, and the others follow its ACK. Where a Cluster
// loses a peer, its endpoints must go no later than that, and where it does both, there is no right order.
func (c *client) early(t *topic) map[string]bool {
	if t.kind != resource.Endpoint {
		return nil
	}
	var early map[string]bool
	inFlight := c.topic(resource.Cluster).inFlight
	for n, r := range slices.Backward(inFlight) {
		for _, p := range r.puts {
			if _, newer := early[p.Endpoints]; newer || p.Endpoints == "" || len(p.Peers) == 0 {
				continue
			}
			if early == nil {
				early = map[string]bool{}
			}
			early[p.Endpoints] = outgrows(p, inFlight[:n+1])
		}
	}
	return early
}

// outgrows says whether p, a Cluster of the last of these replies, accepts every peer of those that the client may have
// in use meanwhile, and more.
func outgrows(p *resource.Resource, inFlight []*reply) bool {
	grows := false
	for _, r := range inFlight {
		i, found := slices.BinarySearchFunc(r.puts, p, byName)
		if !found {
			continue
		}
		last := r.had[i].last
		if last == nil || !holds(p.Peers, last.Peers) {
			return false
		}
		grows = grows || len(p.Peers) > len(last.Peers)
	}
	return grows
}

// holds says whether every one of some is in list, which is sorted.
func holds(list, some []string) bool {
	return !slices.ContainsFunc(some, func(s string) bool {
		_, found := slices.BinarySearch(list, s)
		return !found
	})
}

// stepOrHeld is step; of an assignment that is early it is at most what the client has.
func (t *topic) stepOrHeld(g gap, early bool) step {
	s := t.step(g)
	switch {
	case !early || s.put == nil || g.last == nil || t.refuses(g.last):
		return s // where nothing that the client has could take its place, it comes all the same
	case g.asked || g.unsure:
		return step{put: g.last}
	}
	return step{}
}
