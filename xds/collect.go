package xds

import (
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// collect adds to r what can be sent now. Suspects wait until there is nothing else, and then one group of them is sent.
func (c *client) collect(r *reply, of scope) {
	t := r.topic
	deferred := c.deferred(t)
	var suspects group
	r.puts = make([]*resource.Resource, 0, len(t.gaps))
	for name, g := range t.gaps {
		switch a := c.actionOn(t, name, g, deferred[name]); {
		case a.put != nil && g.suspect > 0:
			suspects.add(g.suspect, a.put)
		case a.put != nil:
			r.puts = append(r.puts, a.put)
		case c.mayBeRemoved(a, g, of):
			r.removed = append(r.removed, name)
		}
	}
	if len(r.puts) == 0 {
		r.puts = suspects.resources
	}
	slices.SortFunc(r.puts, byName)
	slices.Sort(r.removed)
}

// group is the first group of suspects.
type group struct {
	number    int
	resources []*resource.Resource
}

func (s *group) add(number int, r *resource.Resource) {
	switch {
	case s.number == 0 || number < s.number:
		s.number, s.resources = number, []*resource.Resource{r}
	case number == s.number:
		s.resources = append(s.resources, r)
	}
}

// actionOn returns what to send about one name.
func (c *client) actionOn(t *topic, name string, g gap, deferred bool) action {
	a := t.actionUnlessDeferred(g, deferred)
	if a.remove && g.mustAnswer && t.kind == resource.Endpoint {
		return c.endpointsUntilRemoval(name, g)
	}
	return a
}

// mayBeRemoved reports whether a response of that scope may say that a name does not exist. A removal that is not due yet, and
// is not held, makes wait end when it is.
func (c *client) mayBeRemoved(a action, g gap, of scope) bool {
	if a.unknown {
		return of >= answers
	}
	if !a.remove || of != removals {
		return false
	}
	if c.now().Before(g.due) {
		c.dueAt(g.due)
		return false
	}
	return true
}
