package envoysim

import (
	"maps"
	"slices"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// Ask subscribes to names of a type that it does not need. It replaces the names of the last call.
func (e *Envoy) Ask(t resource.Type, names ...string) {
	clear(e.extra)
	for _, name := range names {
		e.extra[resource.Name{Type: t, Name: name}] = true
	}
	e.follow()
}

// follow changes the subscriptions to the current needs: the endpoints of clusters, and the routes of active, warming
// and draining listeners. It drops resources that it no longer subscribes to.
func (e *Envoy) follow() {
	needs := e.needs()
	for _, t := range resource.Types() {
		var add, remove []string
		for n := range needs {
			if n.Type == t && !e.names[n] {
				e.names[n] = true
				add = append(add, n.Name)
			}
		}
		for n := range maps.Clone(e.names) {
			if n.Type == t && !needs[n] {
				delete(e.names, n)
				delete(e.has, n)
				delete(e.named, n)
				delete(e.absent, n)
				remove = append(remove, n.Name)
			}
		}
		if len(add)+len(remove) > 0 {
			slices.Sort(add)
			slices.Sort(remove)
			e.ask(t, add, remove, !e.begun[t])
		}
	}
}

func (e *Envoy) needs() map[resource.Name]bool {
	needs := maps.Clone(e.extra)
	listeners := slices.Collect(maps.Values(e.active))
	for _, d := range e.draining {
		listeners = append(listeners, d.listener)
	}
	for _, r := range e.has {
		if r.Key.Type == resource.Listener {
			listeners = append(listeners, r)
		}
		if r.Endpoints != "" {
			needs[resource.Name{Type: resource.Endpoint, Name: r.Endpoints}] = true
		}
	}
	for _, l := range listeners {
		for _, route := range l.Routes {
			needs[resource.Name{Type: resource.Route, Name: route}] = true
		}
	}
	return needs
}

// ask changes the subscriptions of a type, or sends the first request for it.
func (e *Envoy) ask(t resource.Type, add, remove []string, first bool) {
	e.begun[t] = true
	r := &Request{Type: t, Add: add, Remove: remove}
	if first {
		if wild(t) && e.Star {
			r.Add = []string{"*"}
		}
		r.Versions = map[string]string{}
		for n, v := range e.named {
			if n.Type == t {
				r.Versions[n.Name] = v
			}
		}
	}
	if e.Protocol == SotW {
		r.Nonce = e.nonces[t]
	}
	e.request(r)
}

// request completes a request and sends it.
func (e *Envoy) request(r *Request) {
	if !e.introduced {
		r.Node, r.Records, e.introduced = e.Node, e.Records, true
	}
	if e.Protocol == SotW {
		r.Version = e.versions[r.Type]
		r.Names = e.subscribed(r.Type)
		if wild(r.Type) && e.Star {
			r.Names = []string{"*"}
		}
	}
	e.send(r)
}

func (e *Envoy) subscribed(t resource.Type) []string {
	var list []string
	for n := range e.names {
		if n.Type == t {
			list = append(list, n.Name)
		}
	}
	slices.Sort(list)
	return list
}
