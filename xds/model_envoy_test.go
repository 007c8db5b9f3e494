package xds

import (
	"fmt"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// response applies a response, and ACKs or NACKs it when Envoy would.
func (e *envoy) response(r *response) {
	t := r.subscription.kind
	e.nonce[t] = r.nonce
	list, gone := contents(r, e.g.sotw)
	if e.g.sotw && isSentWhole(t) {
		gone = e.missing(t, list)
	}
	first := t == resource.Cluster && !e.requested[resource.Endpoint] && !e.requested[resource.Listener]
	reason := e.apply(t, list, gone)
	e.follow()
	if t == resource.Cluster && !first && len(e.warming) > 0 {
		e.withheld = append(e.withheld, func() { e.answer(r, reason) })
		return
	}
	e.answer(r, reason)
	e.settle()
}

// missing returns the names that Envoy has, and that a list of all resources does not contain.
func (e *envoy) missing(t resource.Type, list []*resource.Resource) []string {
	var gone []string
	for n := range e.has {
		if n.Type == t && !slices.ContainsFunc(list, func(r *resource.Resource) bool { return r.Name == n.Name }) {
			gone = append(gone, n.Name)
		}
	}
	return gone
}

// apply applies what Envoy accepts, and returns the reason of a NACK, or "".
func (e *envoy) apply(t resource.Type, list []*resource.Resource, gone []string) string {
	bad := slices.IndexFunc(list, func(r *resource.Resource) bool { return isBad(r.Version) })
	if bad >= 0 && e.g.random.IntN(3) == 0 { // as if it broke a validation rule: then Envoy applies nothing
		e.refused(list[bad:])
		if e.g.random.IntN(2) == 0 {
			return "a reason without a name"
		}
		return fmt.Sprintf("Proto constraint validation failed (X): name: %q", list[bad].Name)
	}
	for _, name := range gone {
		e.remove(resource.Name{Type: t, Name: name})
	}
	var reasons []string
	for _, p := range list {
		if !isBad(p.Version) {
			e.put(p)
			continue
		}
		e.refused([]*resource.Resource{p})
		reasons = append(reasons, p.Name+": why")
		if !isSentWhole(t) { // Envoy does not apply what follows
			return "a reason without a name"
		}
	}
	switch {
	case len(reasons) == 0:
		return ""
	case t == resource.Cluster:
		return "Error adding/updating cluster(s) " + strings.Join(reasons, ", ")
	}
	return "Error adding/updating listener(s) " + strings.Join(reasons, "\n") + "\n"
}

func (e *envoy) refused(list []*resource.Resource) {
	for _, p := range list {
		if _, ok := e.has[p.Key()]; !ok {
			e.broken[p.Key()] = true
		}
		if p.Type == resource.Endpoint { // a NACK ends the warming, too
			e.warmed(p.Name)
		}
	}
}

func (e *envoy) put(p *resource.Resource) {
	n := p.Key()
	changed := e.has[n] != p.Version
	switch p.Type {
	case resource.Cluster:
		if changed {
			e.warming[n] = true
			delete(e.stuck, n)
		}
	case resource.Endpoint, resource.Route:
		if !e.names[n] {
			return
		}
		if p.Type == resource.Endpoint {
			e.warmed(p.Name)
		}
	}
	e.has[n] = p.Version
	e.told[n] = true
	if p.Type != resource.Cluster {
		delete(e.broken, n)
	}
}

func (e *envoy) remove(n resource.Name) {
	switch n.Type {
	case resource.Cluster:
		delete(e.warming, n)
		delete(e.stuck, n)
		delete(e.ready, n.Name)
		if e.g.sotw && isBad(e.g.mesh[n]) && e.named[n] == "" {
			e.broken[n] = true // the last good version came in a refused response, so the server does not know about it
		}
	case resource.Listener:
		e.deactivate(n.Name)
	case resource.Endpoint:
		e.warmed(n.Name)
		return // a cluster in use keeps its endpoints
	case resource.Route:
		if e.names[n] && e.has[n] == "" {
			e.answered[n] = true
		}
		return // a listener keeps its route
	}
	delete(e.has, n)
	delete(e.ghosts, n)
}

func (e *envoy) warmed(name string) {
	n := resource.Name{Type: resource.Cluster, Name: name}
	if _, ok := e.has[n]; ok {
		delete(e.warming, n)
		delete(e.broken, n)
		delete(e.stuck, n)
		e.ready[name] = true
	}
}

// timeOut ends the warming of clusters whose endpoints would have come on a lost stream, as Envoy does after 15 seconds. Nor
// can the server send those that came on a lost stream for a cluster that is to be removed. No other cluster may need the
// timeout.
func (e *envoy) timeOut() bool {
	ended := false
	for n := range e.warming {
		endpoints := resource.Name{Type: resource.Endpoint, Name: n.Name}
		lost := e.g.mesh[n] == "" && e.has[endpoints] != "" && !e.told[endpoints]
		if e.stuck[n] || lost {
			e.warmed(n.Name)
			ended = true
		}
	}
	clear(e.stuck)
	e.settle()
	return ended
}

// follow subscribes to what clusters and listeners need now. Envoy does this before it ACKs a response.
func (e *envoy) follow() {
	needs := e.needs()
	for _, t := range []resource.Type{resource.Endpoint, resource.Route} {
		var add, remove []string
		for n := range needs {
			if n.Type == t && !e.names[n] {
				add = append(add, n.Name)
				e.names[n] = true
			}
		}
		for n := range e.names {
			if n.Type == t && !needs[n] {
				remove = append(remove, n.Name)
				e.unsubscribe(n)
			}
		}
		if len(add)+len(remove) > 0 {
			slices.Sort(add)
			e.request(t, add, remove, !e.requested[t])
		}
	}
}

func (e *envoy) unsubscribe(n resource.Name) {
	delete(e.names, n)
	delete(e.has, n)
	delete(e.named, n)
	delete(e.ghosts, n)
	delete(e.answered, n)
}

// needs returns the endpoints that clusters need, and the routes that listeners need, whether in use or warming.
func (e *envoy) needs() map[resource.Name]bool {
	needs := map[resource.Name]bool{}
	for _, d := range e.draining {
		if ref, ok := refOf(resource.Name{Type: resource.Listener, Name: d.name}, d.version); ok && ref.Type == resource.Route {
			needs[ref] = true
		}
	}
	for n, v := range e.has {
		if n.Type == resource.Cluster {
			needs[resource.Name{Type: resource.Endpoint, Name: n.Name}] = true
		}
		if n.Type != resource.Listener {
			continue
		}
		for _, version := range []string{v, e.active[n.Name]} {
			if version == "" {
				continue
			}
			if ref, ok := refOf(n, version); ok && ref.Type == resource.Route {
				needs[ref] = true
			}
		}
	}
	return needs
}

// settle does what has become possible: it sends withheld ACKs and the first request for listeners, and puts listeners into
// use.
func (e *envoy) settle() {
	if len(e.warming) == 0 {
		for _, answer := range e.withheld {
			answer()
		}
		e.withheld = nil
		if !e.requested[resource.Listener] {
			e.request(resource.Listener, nil, nil, true)
		}
	}
	for n, v := range e.has {
		if n.Type != resource.Listener {
			continue
		}
		ref, _ := refOf(n, v)
		if _, ok := e.has[ref]; ref.Type == resource.Cluster || ok || e.answered[ref] || e.broken[ref] {
			if e.active[n.Name] != v {
				e.deactivate(n.Name)
			}
			e.active[n.Name] = v
			if e.answered[ref] && (isBad(e.g.mesh[n]) || isBad(e.g.mesh[ref])) {
				e.orphans[n.Name] = v
			}
		}
	}
	e.follow()
}

// deactivate makes a listener drain that is replaced or removed.
func (e *envoy) deactivate(name string) {
	if v, ok := e.active[name]; ok {
		n := resource.Name{Type: resource.Listener, Name: name}
		e.draining = append(e.draining, drain{
			name: name, version: v, ghost: e.ghosts[n], orphan: e.orphans[name] == v, until: e.g.clock.Add(e.g.drain),
		})
	}
	delete(e.active, name)
}

// drained closes the listeners whose drain is over.
func (e *envoy) drained() {
	before := len(e.draining)
	e.draining = slices.DeleteFunc(e.draining, func(d drain) bool { return !e.g.clock.Before(d.until) })
	if len(e.draining) < before {
		e.follow()
	}
}

// check checks what traffic would find: each listener that is in use or drains has its route and its cluster.
func (e *envoy) check() {
	e.drained()
	for name, v := range e.active {
		n := resource.Name{Type: resource.Listener, Name: name}
		e.checkListener(drain{name: name, version: v, ghost: e.ghosts[n], orphan: e.orphans[name] == v})
	}
	for _, d := range e.draining {
		e.checkListener(d)
	}
}

func (e *envoy) checkListener(l drain) {
	if l.ghost { // the server cannot know what it needs
		return
	}
	ref, _ := refOf(resource.Name{Type: resource.Listener, Name: l.name}, l.version)
	if ref.Type == resource.Route {
		route, ok := e.has[ref]
		if !ok {
			if !e.broken[ref] && !l.orphan {
				e.g.t.Errorf("listener %s@%s has no route", l.name, l.version)
			}
			return
		}
		ref, _ = refOf(ref, route)
	}
	if !e.ready[ref.Name] && !e.broken[ref] {
		e.g.t.Errorf("listener %s@%s has no cluster %s", l.name, l.version, ref.Name)
	}
}
