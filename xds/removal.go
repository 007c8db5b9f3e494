package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Envoy ACKs a listener that replaces another one, or the removal of one, at once. The old listener then drains: for the drain
// time its open connections still use the routes and clusters that it refers to. Nothing says when the last of them has
// ended, so what is stale goes when the drain time is over, counted from when nothing that is not draining refers to it.

// remove returns the next response with removals that are due. If the client has not answered any reply of this stream yet,
// it returns an empty response first. When that is ACKed, all that the client requests when it reconnects (such as routes,
// after clusters) has arrived, and is served before anything is removed.
func (c *client) remove(topics ...*topic) *reply {
	for _, t := range topics {
		c.releaseHeld(t)
		if !c.hasAnswered {
			if len(t.inFlight) == 0 && t.hasRemovals() {
				t.answerDue = true
				return c.reply(t, answers)
			}
			continue
		}
		c.hold(t)
		if r := c.reply(t, removals); r != nil {
			return r
		}
	}
	return nil
}

func (t *topic) hasRemovals() bool {
	for _, g := range t.gaps {
		if t.action(g).remove {
			return true
		}
	}
	return false
}

// hold holds the removals of a type that are not due yet, and says when they are. So they cost nothing until then.
func (c *client) hold(t *topic) {
	now := c.now()
	for name, g := range t.gaps {
		if !t.action(g).remove {
			continue
		}
		if g.due.IsZero() {
			g.due = now.Add(c.drainTime)
		}
		if !now.Before(g.due) || g.mustAnswer {
			t.gaps[name] = g
			continue
		}
		t.dropGap(name)
		if t.held == nil {
			t.held = map[string]gap{}
		}
		t.held[name] = g
		if t.heldUntil.IsZero() || g.due.Before(t.heldUntil) {
			t.heldUntil = g.due
		}
	}
	if len(t.held) == 0 {
		t.heldUntil = time.Time{}
	} else {
		c.dueAt(t.heldUntil)
	}
}

// releaseHeld makes held removals of a type gaps again if the first of them is due. hold then holds the others again.
func (c *client) releaseHeld(t *topic) {
	if t.heldUntil.IsZero() || c.now().Before(t.heldUntil) {
		return
	}
	for name, g := range t.held {
		t.setGap(name, g, nil)
	}
	t.held, t.heldUntil = nil, time.Time{}
}

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
