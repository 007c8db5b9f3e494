package schedule

import (
	"maps"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// envoy is the memory of a client, which outlives a stream. It is what docs/decisions/008-ads-stream.md says of Envoy, as
// far as a server can see: clusters warm until their endpoints come and withhold the ACK meanwhile, listeners warm until
// their routes come, a refused response is applied in part, and what came in it is not named at reconnection.
type envoy struct {
	has   map[resource.Name]*thing // in use, or warming where there was none before
	named map[resource.Name]string // versions that it tells a new stream
	told  map[*thing]bool          // what came on this stream
	names map[resource.Name]bool   // endpoints and routes that it subscribes to
	begun map[resource.Type]bool   // types that it has asked for
	ready map[string]bool          // clusters that were warm once
	// warming clusters, true where the endpoints were due on a stream that was lost.
	warming map[string]bool
	active  map[string]*thing // listeners in use
	refused bool              // something, at any time
}

func newEnvoy() *envoy {
	return &envoy{
		has: map[resource.Name]*thing{}, named: map[resource.Name]string{}, told: map[*thing]bool{}, names: map[resource.Name]bool{},
		begun: map[resource.Type]bool{}, ready: map[string]bool{}, warming: map[string]bool{}, active: map[string]*thing{},
	}
}

// wild types are subscribed to as a whole.
func wild(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// haunted: it has something that it will not name to the next stream, which can therefore not remove it.
func (e *envoy) haunted() bool {
	for n, t := range e.has {
		if wild(n.Type) && e.named[n] != t.version {
			return true
		}
	}
	return false
}

// reconnected forgets what the lost stream was about to bring.
func (e *envoy) reconnected() {
	clear(e.told)
	for name := range e.warming {
		e.warming[name] = true
	}
}

func (e *envoy) subscribed(t resource.Type) []string {
	var list []string
	for n := range e.names {
		if n.Type == t {
			list = append(list, n.Name)
		}
	}
	slices.Sort(list)
	return list
}

// count is how many of a type it has.
func (e *envoy) count(t resource.Type) int {
	n := 0
	for name := range e.has {
		if name.Type == t {
			n++
		}
	}
	return n
}

// missing are the names that a whole list no longer has.
func (e *envoy) missing(t resource.Type, list []*thing) []string {
	var gone []string
	for n := range e.has {
		if n.Type == t && !slices.ContainsFunc(list, func(one *thing) bool { return one.key == n }) {
			gone = append(gone, n.Name)
		}
	}
	slices.Sort(gone)
	return gone
}

// taste says how a response is taken.
type taste struct {
	bad   func(*thing) bool
	whole bool // nothing of a response with something bad is applied
	mute  bool // the refusal names nothing, where Envoy's may not
}

// apply takes what can be taken, and returns the words of a NACK, which are Envoy's.
func (e *envoy) apply(t resource.Type, puts []*thing, gone []string, taste taste) string {
	first := slices.IndexFunc(puts, taste.bad)
	if first >= 0 && taste.whole {
		e.refuse(puts)
		if taste.mute {
			return "a reason without a name"
		}
		return `Proto constraint validation failed (X): name: "` + puts[first].key.Name + `"`
	}
	for _, name := range gone {
		e.remove(resource.Name{Type: t, Name: name})
	}
	var reasons []string
	for _, p := range puts {
		switch {
		case taste.bad(p):
			reasons = append(reasons, p.key.Name+": why")
			e.refuse([]*thing{p})
		case wild(t) || len(reasons) == 0: // of endpoints and routes nothing is applied that comes after a bad one
			e.put(p)
		}
	}
	switch {
	case len(reasons) == 0:
		for _, p := range puts {
			if e.has[p.key] == p {
				e.named[p.key] = p.version
			}
		}
		return ""
	case t == resource.Cluster:
		return "Error adding/updating cluster(s) " + strings.Join(reasons, ", ")
	case t == resource.Listener:
		return "Error adding/updating listener(s) " + strings.Join(reasons, "\n") + "\n"
	}
	return "a reason without a name"
}

func (e *envoy) refuse(list []*thing) {
	e.refused = true
	for _, p := range list {
		if p.key.Type == resource.Endpoint { // a refusal ends the wait, too
			e.warmed(p.key.Name)
		}
	}
}

func (e *envoy) put(p *thing) {
	if !wild(p.key.Type) && !e.names[p.key] {
		return // sent before the server knew that it is of no use
	}
	was := e.has[p.key]
	e.has[p.key] = p
	e.told[p] = true
	switch {
	case p.key.Type == resource.Endpoint:
		e.warmed(p.key.Name)
	case p.key.Type != resource.Cluster:
	case p.endpoints == "":
		e.ready[p.key.Name] = true
		delete(e.warming, p.key.Name)
	case was == nil || was.version != p.version:
		e.warming[p.key.Name] = false
	}
}

// warmed is told of endpoints: a cluster and its assignment have one name in Sonde.
func (e *envoy) warmed(name string) {
	if e.has[resource.Name{Type: resource.Cluster, Name: name}] != nil {
		delete(e.warming, name)
		e.ready[name] = true
	}
}

func (e *envoy) remove(n resource.Name) {
	delete(e.named, n)
	switch n.Type {
	case resource.Cluster:
		delete(e.warming, n.Name)
		delete(e.ready, n.Name)
	case resource.Listener:
		delete(e.active, n.Name)
	case resource.Endpoint:
		e.warmed(n.Name)
		return // a cluster that is there keeps its endpoints
	case resource.Route:
		return // and a listener its routes
	}
	delete(e.has, n)
}

// follow changes what it subscribes to: the endpoints of clusters, the routes of listeners in use and warming.
func (e *envoy) follow() (add, remove map[resource.Type][]string) {
	needs := map[resource.Name]bool{}
	for n, t := range e.has {
		if n.Type == resource.Cluster && t.endpoints != "" {
			needs[resource.Name{Type: resource.Endpoint, Name: t.endpoints}] = true
		}
		if n.Type == resource.Listener {
			for _, l := range []*thing{t, e.active[n.Name]} {
				for _, route := range l.needs() {
					needs[resource.Name{Type: resource.Route, Name: route}] = true
				}
			}
		}
	}
	add, remove = map[resource.Type][]string{}, map[resource.Type][]string{}
	for n := range needs {
		if !e.names[n] {
			e.names[n] = true
			add[n.Type] = append(add[n.Type], n.Name)
		}
	}
	for n := range maps.Clone(e.names) {
		if !needs[n] {
			delete(e.names, n)
			delete(e.has, n)
			delete(e.named, n)
			remove[n.Type] = append(remove[n.Type], n.Name)
		}
	}
	return add, remove
}

func (t *thing) needs() []string {
	if t == nil {
		return nil
	}
	return t.routes
}

// activate takes the listeners into use whose routes are there.
func (e *envoy) activate() {
	for n, l := range e.has {
		if n.Type != resource.Listener {
			continue
		}
		there := func(route string) bool { return e.has[resource.Name{Type: resource.Route, Name: route}] != nil }
		if !slices.ContainsFunc(l.routes, func(route string) bool { return !there(route) }) {
			e.active[n.Name] = l
		}
	}
}

// broken says what traffic would meet that should not be, "" if nothing: a listener in use without its route, or a route
// without its cluster. What a stream of the state of the world has not told of is left aside, since the server cannot know
// of it, and so is an Envoy that refused something: of these xds/model_test.go takes care.
func (e *envoy) broken(sotw bool) string {
	if e.refused {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(e.active)) {
		l := e.active[name]
		if sotw && !e.told[l] {
			continue
		}
		clusters := l.clusters
		for _, route := range l.routes {
			n := resource.Name{Type: resource.Route, Name: route}
			switch r := e.has[n]; {
			case r == nil:
				return "listener " + name + " has no route " + route
			case !sotw || e.told[r]:
				clusters = append(slices.Clip(clusters), r.clusters...)
			}
		}
		for _, c := range clusters {
			if !e.ready[c] {
				return "listener " + name + " has no cluster " + c
			}
		}
	}
	return ""
}
