package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Envoy ACKs a listener that replaces another one, or the removal of one, at once. The old listener then drains: for the drain
// time its open connections still use the routes and clusters that it refers to. Nothing says when the last of them has
// ended, so what is stale goes when the drain time is over, counted from when nothing that is not draining refers to it.

// remove returns the next response with removals that are due. If the proxy has not answered any response of this stream yet,
// it returns an empty response first. When that is ACKed, all that the proxy requests when it reconnects (such as routes,
// after clusters) has arrived, and is served before anything is removed.
func (p *proxy) remove(subscriptions ...*subscription) *response {
	for _, s := range subscriptions {
		p.releaseHeld(s)
		if !p.hasAnswered {
			if len(s.inFlight) == 0 && s.hasRemovals() {
				s.responseDue = true
				return p.respond(s, notFound)
			}
			continue
		}
		p.hold(s)
		if r := p.respond(s, removals); r != nil {
			return r
		}
	}
	return nil
}

func (s *subscription) hasRemovals() bool {
	for _, u := range s.pending {
		if s.action(u).remove {
			return true
		}
	}
	return false
}

// hold holds the removals of a type that are not due yet, and says when they are. So they cost nothing until then.
func (p *proxy) hold(s *subscription) {
	now := p.now()
	for name, u := range s.pending {
		if !s.action(u).remove {
			continue
		}
		if u.due.IsZero() {
			u.due = now.Add(p.drainTime)
		}
		if !now.Before(u.due) || u.mustMention {
			s.pending[name] = u
			continue
		}
		s.dropPending(name)
		if s.held == nil {
			s.held = map[string]update{}
		}
		s.held[name] = u
		if s.heldUntil.IsZero() || u.due.Before(s.heldUntil) {
			s.heldUntil = u.due
		}
	}
	if len(s.held) == 0 {
		s.heldUntil = time.Time{}
	} else {
		p.dueAt(s.heldUntil)
	}
}

// releaseHeld makes held removals of a type pending again if the first of them is due. hold then holds the others again.
func (p *proxy) releaseHeld(s *subscription) {
	if s.heldUntil.IsZero() || p.now().Before(s.heldUntil) {
		return
	}
	for name, u := range s.held {
		s.setPending(name, u, nil)
	}
	s.held, s.heldUntil = nil, time.Time{}
}

// endpointsUntilRemoval returns what to send about endpoints that are to be removed, and for which a changed cluster warms. If
// the cluster is to be removed, too, listeners and routes still use it: it gets its last endpoints again, or those that it
// should have had last. If neither is known, since the proxy got them on an earlier stream, it warms until Envoy gives up,
// and then goes on with those it has.
func (p *proxy) endpointsUntilRemoval(name string, u update) action {
	switch {
	case p.get(p.subscription(resource.Cluster), name) != nil:
		return action{notFound: true}
	case u.last != nil:
		return action{send: u.last}
	case u.wanted != nil:
		return action{send: u.wanted}
	}
	return action{remove: true}
}
