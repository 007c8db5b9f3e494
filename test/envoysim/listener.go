package envoysim

import (
	"maps"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

type draining struct {
	name     string
	listener *Resource
	until    time.Time
}

// deactivate makes a listener drain that is replaced or removed.
func (e *Envoy) deactivate(name string) {
	if l := e.active[name]; l != nil {
		e.draining = append(e.draining, draining{name, l, time.Now().Add(e.DrainTime)})
	}
	delete(e.active, name)
}

// NextDrained returns after how long the next drain is over, 0 if nothing drains. Settle must then be called.
func (e *Envoy) NextDrained() time.Duration {
	if len(e.draining) == 0 {
		return 0
	}
	return max(1, time.Until(e.draining[0].until))
}

// activate puts listeners into use whose routes are there.
func (e *Envoy) activate() {
	for n, l := range e.has {
		missing := func(route string) bool { return e.has[resource.Name{Type: resource.Route, Name: route}] == nil }
		if n.Type != resource.Listener || slices.ContainsFunc(l.Routes, missing) || e.active[n.Name] == l {
			continue
		}
		e.deactivate(n.Name)
		e.active[n.Name] = l
	}
}

// Broken describes what would harm traffic, "" if nothing: a listener that is active or drains without its route, or a route
// without its cluster. It ignores what a stream of the state of the world has not sent yet, since the server cannot know of
// it, and an Envoy that has refused something: xds/model_test.go covers that.
func (e *Envoy) Broken() string {
	if e.refused {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(e.active)) {
		if what := e.lacks(e.active[name]); what != "" {
			return "listener " + name + what
		}
	}
	for _, d := range e.draining {
		if what := e.lacks(d.listener); what != "" {
			return "listener " + d.name + ", which drains," + what
		}
	}
	return ""
}

// lacks describes what a listener needs and Envoy does not have, "" if nothing.
func (e *Envoy) lacks(l *Resource) string {
	due := func(r *Resource) bool { return e.Protocol == Delta || e.received[r] }
	if !due(l) {
		return ""
	}
	clusters := l.Clusters
	for _, route := range l.Routes {
		switch r := e.has[resource.Name{Type: resource.Route, Name: route}]; {
		case r == nil:
			return " has no route " + route
		case due(r):
			clusters = append(slices.Clip(clusters), r.Clusters...)
		}
	}
	for _, c := range clusters {
		switch {
		case !e.ready[c]:
			return " has no cluster " + c
		case e.emptied[c]:
			return " has a cluster without its endpoints, " + c
		}
	}
	return ""
}
