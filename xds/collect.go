package xds

import (
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// collect adds to r what can be sent now. Suspects wait until nothing else is left to send; then one group of them is
// sent.
func (p *proxy) collect(r *response, of scope) {
	s := r.subscription
	deferred := p.deferred(s)
	var suspects group
	r.resources = make([]mention, 0, len(s.pending))
	for name, u := range s.pending {
		switch a := p.actionOn(s, name, u, deferred[name]); {
		case a.send != nil && u.suspect > 0:
			suspects.add(mention{name, a.send, u})
		case a.send != nil:
			r.resources = append(r.resources, mention{name, a.send, u})
		case p.mayBeRemoved(a, u, of):
			r.removed = append(r.removed, mention{name: name, before: u})
		}
	}
	if len(r.resources) == 0 {
		r.resources = suspects.resources
	}
	slices.SortFunc(r.resources, compareMentions)
	slices.SortFunc(r.removed, compareMentions)
}

// group is the first group of suspects.
type group struct {
	number    int
	resources []mention
}

func (g *group) add(m mention) {
	switch number := m.before.suspect; {
	case g.number == 0 || number < g.number:
		g.number, g.resources = number, []mention{m}
	case number == g.number:
		g.resources = append(g.resources, m)
	}
}

// actionOn returns what to send about one name.
func (p *proxy) actionOn(s *subscription, name string, u update, deferred bool) action {
	a := s.actionUnlessDeferred(u, deferred)
	if a.remove && u.mustMention && s.kind == resource.Endpoint {
		return p.endpointsUntilRemoval(name, u)
	}
	return a
}

// mayBeRemoved reports whether a response of this scope may tell the proxy that a name does not exist. If a removal is
// not due yet and not held, wait ends when it is due.
func (p *proxy) mayBeRemoved(a action, u update, of scope) bool {
	if a.notFound {
		return of >= notFound
	}
	if !a.remove || of != removals {
		return false
	}
	if p.now().Before(u.due) {
		p.dueAt(u.due)
		return false
	}
	return true
}
