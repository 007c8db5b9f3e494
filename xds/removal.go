package xds

import (
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Envoy ACKs the replacement or removal of a listener at once. The old listener then drains: for the drain time its
// open connections still use the routes and clusters that it refers to. Nothing signals the end of the last connection,
// so stale resources are removed after the drain time, counted from when the last listener in use stopped referring to
// them.

// remove returns the next response with due removals. If the proxy has not answered any response of this stream yet,
// remove returns an empty response first. Once that is ACKed, all requests that the proxy sends when it reconnects
// (such as routes, after clusters) have arrived, and are served before anything is removed.
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

// hold sets aside the removals of a type that are not due yet, and records when they are due, so that they cost nothing
// until then.
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

// releaseHeld makes held removals of a type pending again if the first of them is due. hold then holds the others
// again.
func (p *proxy) releaseHeld(s *subscription) {
	if s.heldUntil.IsZero() || p.now().Before(s.heldUntil) {
		return
	}
	for name, u := range s.held {
		s.setPending(name, u, nil)
	}
	s.held, s.heldUntil = nil, time.Time{}
}

// endpointsUntilRemoval returns what to send about endpoints that will be removed while a changed cluster warms for
// them. If the cluster will be removed, too, listeners and routes still use it: it gets its last endpoints again, or
// the last ones that it should have had. If both are unknown, since the proxy got them on an earlier stream, the
// cluster warms until Envoy gives up, and then keeps its endpoints.
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
