package schedule

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// envoy is what a client has, which outlives its streams. It behaves as docs/decisions/008-ads-stream.md describes Envoy, as
// far as a server can see. Clusters warm until their endpoints come, and withhold the ACK until then. Listeners warm until
// their routes come. A refused response is applied in part, and its resources are not named after a reconnect.
type envoy struct {
	has   map[resource.Name]*thing // in use, or warming if there was none before
	named map[resource.Name]string // versions that it names on a new stream
	told  map[*thing]bool          // what came on this stream
	names map[resource.Name]bool   // endpoints and routes that it subscribes to
	begun map[resource.Type]bool   // types that it has asked for
	ready map[string]bool          // clusters that have been warm
	// warming clusters; true if their endpoints were due on a stream that was lost.
	warming map[string]bool
	active  map[string]*thing // listeners in use
	// draining are listeners that were replaced or removed, which serve only their open connections.
	draining []draining
	// emptied are clusters whose endpoints were removed while they warmed: they have gone into use without any.
	emptied map[string]bool
	refused bool // it has refused something
}

func newEnvoy() *envoy {
	return &envoy{
		has: map[resource.Name]*thing{}, named: map[resource.Name]string{}, told: map[*thing]bool{}, names: map[resource.Name]bool{},
		begun: map[resource.Type]bool{}, ready: map[string]bool{}, warming: map[string]bool{}, active: map[string]*thing{},
		emptied: map[string]bool{},
	}
}

type draining struct {
	name     string
	listener *thing
	until    time.Time
}

// deactivate makes a listener drain that is replaced or removed.
func (e *envoy) deactivate(name string) {
	if l := e.active[name]; l != nil {
		e.draining = append(e.draining, draining{name, l, time.Now().Add(drainTime)})
	}
	delete(e.active, name)
}

// closeDrained closes the listeners whose drain is over.
func (e *envoy) closeDrained() {
	e.draining = slices.DeleteFunc(e.draining, func(d draining) bool { return !time.Now().Before(d.until) })
}

// nextDrained returns after how long the next drain is over, 0 if nothing drains.
func (e *envoy) nextDrained() time.Duration {
	if len(e.draining) == 0 {
		return 0
	}
	return max(1, time.Until(e.draining[0].until))
}

// wild types are subscribed to as a whole.
func wild(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }

// hasUnnamed says whether it has something that it would not name on the next stream, so that nothing can remove it.
func (e *envoy) hasUnnamed() bool {
	for n, t := range e.has {
		if wild(n.Type) && e.named[n] != t.version {
			return true
		}
	}
	return false
}

// reconnected forgets the state of the lost stream.
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

// count returns how many resources of a type it has.
func (e *envoy) count(t resource.Type) int {
	n := 0
	for name := range e.has {
		if name.Type == t {
			n++
		}
	}
	return n
}

// missing returns the names that a complete list no longer contains.
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

// taste decides what is refused, and how.
type taste struct {
	bad   func(*thing) bool
	whole bool // a response with a bad resource is refused as a whole
	mute  bool // the NACK names no resource, if Envoy's may not
}

// apply applies what is good, and returns the message of a NACK in Envoy's words.
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
		case wild(t) || len(reasons) == 0: // endpoints and routes after a bad one are not applied
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
		if p.key.Type == resource.Endpoint { // a refusal also ends the wait
			e.warmed(p.key.Name)
		}
	}
}

func (e *envoy) put(p *thing) {
	if !wild(p.key.Type) && !e.names[p.key] {
		return // sent before the server knew that it is not needed any more
	}
	was := e.has[p.key]
	e.has[p.key] = p
	e.told[p] = true
	switch {
	case p.key.Type == resource.Endpoint:
		delete(e.emptied, p.key.Name)
		e.warmed(p.key.Name)
	case p.key.Type != resource.Cluster:
	case p.endpoints == "":
		e.ready[p.key.Name] = true
		delete(e.warming, p.key.Name)
	case was == nil || was.version != p.version:
		e.warming[p.key.Name] = false
	}
}

// warmed is called for endpoints: in Sonde a cluster and its assignment have the same name.
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
		e.deactivate(n.Name)
	case resource.Endpoint:
		if _, warms := e.warming[n.Name]; warms && e.has[n] != nil {
			e.emptied[n.Name] = true
		}
		e.warmed(n.Name)
		return // an existing cluster keeps its endpoints
	case resource.Route:
		return // an existing listener keeps its routes
	}
	delete(e.has, n)
}

// follow updates the subscriptions: the endpoints of clusters, and the routes of active and warming listeners.
func (e *envoy) follow() (add, remove map[resource.Type][]string) {
	needs := map[resource.Name]bool{}
	for _, d := range e.draining {
		for _, route := range d.listener.routes {
			needs[resource.Name{Type: resource.Route, Name: route}] = true
		}
	}
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

// activate puts listeners into use whose routes are there.
func (e *envoy) activate() {
	for n, l := range e.has {
		if n.Type != resource.Listener {
			continue
		}
		there := func(route string) bool { return e.has[resource.Name{Type: resource.Route, Name: route}] != nil }
		if !slices.ContainsFunc(l.routes, func(route string) bool { return !there(route) }) {
			if e.active[n.Name] != l {
				e.deactivate(n.Name)
			}
			e.active[n.Name] = l
		}
	}
}

// broken describes what would harm traffic, "" if nothing: a listener that is active or drains without its route, or a route
// without its cluster. It ignores what a stream of the state of the world has not sent yet, since the server cannot know of
// it, and an Envoy that has refused something: xds/model_test.go covers that.
func (e *envoy) broken(sotw bool) string {
	if e.refused {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(e.active)) {
		if what := e.lacks(e.active[name], sotw); what != "" {
			return "listener " + name + what
		}
	}
	for _, d := range e.draining {
		if what := e.lacks(d.listener, sotw); what != "" {
			return "listener " + d.name + ", which drains," + what
		}
	}
	return ""
}

// lacks describes what a listener needs and Envoy does not have, "" if nothing.
func (e *envoy) lacks(l *thing, sotw bool) string {
	if sotw && !e.told[l] {
		return ""
	}
	clusters := l.clusters
	for _, route := range l.routes {
		n := resource.Name{Type: resource.Route, Name: route}
		switch r := e.has[n]; {
		case r == nil:
			return " has no route " + route
		case !sotw || e.told[r]:
			clusters = append(slices.Clip(clusters), r.clusters...)
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
