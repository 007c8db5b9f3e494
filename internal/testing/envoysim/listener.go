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

// deactivate drains a replaced or removed listener.
func (e *Envoy) deactivate(name string) {
	if l := e.active[name]; l != nil {
		e.draining = append(e.draining, draining{name, l, time.Now().Add(e.DrainTime)})
	}
	delete(e.active, name)
}

// NextDrained returns when the next drain ends, 0 if none runs. Call Settle then.
func (e *Envoy) NextDrained() time.Duration {
	if len(e.draining) == 0 {
		return 0
	}
	return max(1, time.Until(e.draining[0].until))
}

// activate activates listeners whose routes are present, do not exist, or are refused.
func (e *Envoy) activate() {
	for n, l := range e.has {
		missing := func(route string) bool {
			r := resource.Name{Type: resource.Route, Name: route}
			return e.has[r] == nil && !e.absent[r] && !e.broken[r]
		}
		if n.Type != resource.Listener || slices.ContainsFunc(l.Routes, missing) || e.active[n.Name] == l {
			continue
		}
		e.deactivate(n.Name)
		e.active[n.Name] = l
	}
}

// Lack is a missing resource that an active or draining listener needs, which harms traffic.
type Lack struct {
	Listener *Resource
	Draining bool
	// Needs is a route or a cluster. With WithoutEndpoints the cluster exists, but its endpoints were removed while it
	// warmed.
	Needs            resource.Name
	WithoutEndpoints bool
}

// String describes the lack.
func (l Lack) String() string {
	text := "listener " + l.Listener.Key.Name + "@" + l.Listener.Version
	if l.Draining {
		text += ", which drains,"
	}
	if text += " has no " + l.Needs.Type.Short() + " " + l.Needs.Name; l.WithoutEndpoints {
		text += " with endpoints"
	}
	return text
}

// Lacks returns everything that would harm traffic. It leaves out listeners that the server cannot know: those from a
// lost stream that were not reported, and in the state of the world all listeners that this stream has not sent. It
// also leaves out the needs of a resource that was refused when new.
func (e *Envoy) Lacks() []Lack {
	var all []Lack
	for _, name := range slices.Sorted(maps.Keys(e.active)) {
		all = e.lacks(all, Lack{Listener: e.active[name]})
	}
	for _, d := range e.draining {
		all = e.lacks(all, Lack{Listener: d.listener, Draining: true})
	}
	return all
}

func (e *Envoy) lacks(all []Lack, of Lack) []Lack {
	due := func(r *Resource) bool { return e.Protocol == Delta || e.received[r] }
	if !due(of.Listener) || e.unnamed[of.Listener] {
		return all
	}
	clusters := of.Listener.Clusters
	for _, route := range of.Listener.Routes {
		of.Needs = resource.Name{Type: resource.Route, Name: route}
		switch r := e.has[of.Needs]; {
		case r == nil && !e.broken[of.Needs]:
			all = append(all, of)
		case r != nil && due(r):
			clusters = append(slices.Clip(clusters), r.Clusters...)
		}
	}
	for _, c := range clusters {
		of.Needs = resource.Name{Type: resource.Cluster, Name: c}
		of.WithoutEndpoints = e.ready[c] && e.emptied[c]
		if of.WithoutEndpoints || !e.ready[c] && !e.broken[of.Needs] {
			all = append(all, of)
		}
	}
	return all
}
