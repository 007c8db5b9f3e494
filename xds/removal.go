package xds

import "github.com/sonde-mesh/sonde/xds/resource"

// Envoy ACKs a listener that replaces another one, or the removal of one, at once. The old listener then drains: for the drain
// time its open connections still use the routes and clusters that it refers to. Nothing says when the last of them has
// ended, so what is stale goes when the drain time is over, counted from when nothing that is not draining refers to it.

// remove returns the next response with removals that are due. If the client has not answered any reply of this stream yet,
// it returns an empty response first. When that is ACKed, all that the client requests when it reconnects (such as routes,
// after clusters) has arrived, and is served before anything is removed.
func (c *client) remove(topics ...*topic) *reply {
	for _, t := range topics {
		some, due := c.holdRemovals(t)
		switch {
		case due:
			if r := c.reply(t, removals); r != nil {
				return r
			}
		case some && !c.hasAnswered && len(t.inFlight) == 0:
			t.answerDue = true
			return c.reply(t, answers)
		}
	}
	return nil
}

// holdRemovals sets when each removal of a type is due for which that is not known yet. It reports whether there are
// removals, and whether one of them is due now.
func (c *client) holdRemovals(t *topic) (some, due bool) {
	now := c.now()
	for name, g := range t.gaps {
		if !t.action(g).remove {
			continue
		}
		some = true
		if !c.hasAnswered {
			continue
		}
		if g.due.IsZero() {
			g.due = now.Add(c.drainTime)
			t.gaps[name] = g
		}
		if now.Before(g.due) {
			c.dueAt(g.due)
		} else {
			due = true
		}
	}
	return some, due
}

// held reports whether a removal waits for listeners that drain.
func (g gap) held() bool { return !g.due.IsZero() && g.now == nil }

// endpointsUntilRemoval returns what to send about endpoints that are to be removed, and for which a changed cluster warms. If
// the cluster is to be removed, too, listeners and routes still use it: it gets its last endpoints again, or those that it
// should have had last. If neither is known, since the client got them on an earlier stream, it warms until Envoy gives up,
// and then goes on with those it has.
func (c *client) endpointsUntilRemoval(name string, g gap) action {
	switch {
	case c.get(c.topic(resource.Cluster), name) != nil:
		return action{unknown: true}
	case g.last != nil:
		return action{put: g.last}
	case g.wanted != nil:
		return action{put: g.wanted}
	}
	return action{remove: true}
}
