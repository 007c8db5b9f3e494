// Package envoysim simulates what an Envoy does with ADS, as far as a server can see: it subscribes to what clusters and
// listeners refer to, warms, ACKs and refuses, drains listeners, and says what it has when it reconnects. It is for tests, and does
// what trials with the real Envoy showed, and no more (docs/decisions/008-ads-stream.md).
//
// It has no clock but time.Now, no goroutine and no network: its user gives it responses, and gets its requests.
package envoysim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// WarmingTimeout is Envoy's initial_fetch_timeout: after it a cluster goes into use without endpoints.
const WarmingTimeout = 15 * time.Second

// Options of an Envoy.
type Options struct {
	Node     string
	Protocol Protocol
	// Star subscribes to all clusters and listeners by the name "*", and not by naming nothing.
	Star bool
	// DrainTime is how long a listener that is replaced or removed serves its open connections. It keeps its routes so long.
	DrainTime time.Duration
	// Records has the metadata of the node say that an agent takes records of plain text.
	Records bool
}

// Envoy is what one Envoy has, which outlives its streams. It is not safe for concurrent use.
type Envoy struct {
	Options
	send       func(*Request)
	introduced bool // the stream knows the node

	has      map[resource.Name]*Resource // in use, or warming if there was none before
	named    map[resource.Name]string    // versions that it names on a new stream: only what accepted responses brought
	unnamed  map[*Resource]bool          // what it has from a stream that was lost, and did not name on this one
	received map[*Resource]bool          // what came on this stream
	names    map[resource.Name]bool      // endpoints and routes that it subscribes to
	absent   map[resource.Name]bool      // routes that are known not to exist
	broken   map[resource.Name]bool      // refused when they were new, so that what needs them cannot work
	extra    map[resource.Name]bool      // those that nothing needs, see Ask
	begun    map[resource.Type]bool      // types that it has asked for
	// initialized: it has got clusters, and asks for listeners when they are warm.
	initialized bool
	ready       map[string]bool // clusters that have been warm
	// warming clusters; true if their endpoints were due on a stream that was lost.
	warming map[string]bool
	active  map[string]*Resource // listeners in use
	// draining are listeners that were replaced or removed.
	draining []draining
	// emptied are clusters whose endpoints were removed while they warmed: they have gone into use without any.
	emptied map[string]bool
	refused bool // it has refused something

	nonces   map[resource.Type]string
	versions map[resource.Type]string // the version_info that it accepted last
	withheld []*Request               // answers to responses with clusters, until these are warm
	hold     bool                     // see Hold
}

// New returns an Envoy that has nothing and no stream.
func New(o Options) *Envoy {
	return &Envoy{
		Options: o,
		has:     map[resource.Name]*Resource{}, named: map[resource.Name]string{}, unnamed: map[*Resource]bool{}, received: map[*Resource]bool{},
		names: map[resource.Name]bool{}, absent: map[resource.Name]bool{}, broken: map[resource.Name]bool{}, extra: map[resource.Name]bool{}, begun: map[resource.Type]bool{},
		ready: map[string]bool{}, warming: map[string]bool{}, active: map[string]*Resource{}, emptied: map[string]bool{},
		nonces: map[resource.Type]string{}, versions: map[resource.Type]string{},
	}
}

// Connect forgets the stream before, and begins one whose requests go to send: the first one of each type that it has ever
// asked for, with what it has.
func (e *Envoy) Connect(send func(*Request)) {
	e.send, e.introduced = send, false
	clear(e.received)
	clear(e.nonces)
	e.withheld = nil
	for name := range e.warming {
		e.warming[name] = true
	}
	for n, r := range e.has {
		if e.named[n] != r.Version {
			e.unnamed[r] = true
		}
	}
	e.begun[resource.Cluster] = true
	for _, t := range resource.Types() {
		if e.begun[t] {
			e.ask(t, e.subscribed(t), nil, true)
		}
	}
}

// Hold makes it answer no response with clusters, as if they warmed, until it is called with false.
func (e *Envoy) Hold(on bool) {
	e.hold = on
	e.Settle()
}

// Refusals say what is refused of a response, and how. The zero value refuses nothing.
type Refusals struct {
	// Reason of a resource that is refused, "" for another.
	Reason func(*Resource) string
	// Whole refuses the whole response because of one resource, which the NACK names unless it is Unnamed.
	Whole, Unnamed bool
}

func (r Refusals) reason(p *Resource) string {
	if r.Reason == nil {
		return ""
	}
	return r.Reason(p)
}

// Take applies a response, and answers it now or, if clusters warm, when they have warmed.
func (e *Envoy) Take(r *Response, refusals Refusals) {
	e.nonces[r.Type] = r.Nonce
	e.initialized = e.initialized || r.Type == resource.Cluster
	first := r.Type == resource.Cluster && !e.begun[resource.Endpoint] && !e.begun[resource.Listener]
	answer := &Request{Type: r.Type, Nonce: r.Nonce, Refusal: e.apply(r, refusals)}
	if answer.Refusal == "" {
		e.versions[r.Type] = r.Version
	}
	e.follow() // Envoy does so before it answers
	if r.Type == resource.Cluster && (e.hold || !first && len(e.warming) > 0) {
		e.withheld = append(e.withheld, answer)
	} else {
		e.request(answer)
	}
	e.Settle()
}

// Settle does what has become possible: it sends withheld answers and the first request for listeners, puts listeners into
// use, and ends drains. Take calls it, too.
func (e *Envoy) Settle() {
	if len(e.warming) == 0 && !e.hold {
		for _, answer := range e.withheld {
			e.request(answer)
		}
		e.withheld = nil
		if e.initialized && !e.begun[resource.Listener] {
			e.ask(resource.Listener, nil, nil, true)
		}
	}
	e.activate()
	e.draining = slices.DeleteFunc(e.draining, func(d draining) bool { return !time.Now().Before(d.until) })
	e.follow()
}

// Gone returns the names that a response removes, sorted. In the state of the world it is what a list no longer contains.
func (e *Envoy) Gone(r *Response) []string {
	gone := slices.Clone(r.Gone)
	if e.Protocol == SotW && wild(r.Type) {
		for n := range e.has {
			if n.Type == r.Type && !slices.ContainsFunc(r.Put, func(p *Resource) bool { return p.Key == n }) {
				gone = append(gone, n.Name)
			}
		}
	}
	slices.Sort(gone)
	return gone
}

// apply applies what is good, and returns the message of a NACK in Envoy's words.
func (e *Envoy) apply(r *Response, refusals Refusals) string {
	first := slices.IndexFunc(r.Put, func(p *Resource) bool { return refusals.reason(p) != "" })
	if first >= 0 && refusals.Whole {
		e.refuse(r.Put[first:]...)
		if refusals.Unnamed {
			return "a reason without a name"
		}
		return `Proto constraint validation failed (X): name: "` + r.Put[first].Key.Name + `"`
	}
	gone := e.Gone(r)
	for _, name := range gone {
		e.remove(resource.Name{Type: r.Type, Name: name})
	}
	var reasons []string
	for _, p := range r.Put {
		reason := refusals.reason(p)
		switch {
		case reason != "" && wild(r.Type):
			reasons = append(reasons, p.Key.Name+": "+reason)
			e.refuse(p)
		case reason != "":
			reasons = append(reasons, reason)
			e.refuse(p)
		case wild(r.Type) || len(reasons) == 0: // endpoints and routes after a bad one are not applied
			e.put(p)
		}
	}
	switch {
	case len(reasons) == 0:
		e.name(r, gone)
		return ""
	case r.Type == resource.Cluster:
		return "Error adding/updating cluster(s) " + strings.Join(reasons, ", ")
	case r.Type == resource.Listener:
		return "Error adding/updating listener(s) " + strings.Join(reasons, "\n") + "\n"
	}
	return reasons[0]
}

// name notes what it will name on the next stream, after a response that it accepted.
func (e *Envoy) name(r *Response, gone []string) {
	for _, p := range r.Put {
		if e.has[p.Key] == p {
			e.named[p.Key] = p.Version
		}
	}
	for _, name := range gone {
		delete(e.named, resource.Name{Type: r.Type, Name: name})
	}
}

func (e *Envoy) refuse(list ...*Resource) {
	e.refused = true
	for _, p := range list {
		if e.has[p.Key] == nil {
			e.broken[p.Key] = true
		}
		if p.Key.Type == resource.Endpoint { // a refusal also ends the wait
			e.warmed(p.Key.Name)
		}
	}
}

func (e *Envoy) put(p *Resource) {
	if !wild(p.Key.Type) && !e.names[p.Key] {
		return // sent before the server knew that it is not needed any more
	}
	was := e.has[p.Key]
	e.has[p.Key] = p
	e.received[p] = true
	delete(e.unnamed, p)
	if p.Key.Type != resource.Cluster {
		delete(e.broken, p.Key)
	}
	switch {
	case p.Key.Type == resource.Endpoint:
		delete(e.emptied, p.Key.Name)
		e.warmed(p.Key.Name)
	case p.Key.Type != resource.Cluster:
	case p.Endpoints == "":
		e.ready[p.Key.Name] = true
		delete(e.warming, p.Key.Name)
	case was == nil || was.Version != p.Version:
		e.warming[p.Key.Name] = false
	}
}

// warmed is called for endpoints: in Sonde a cluster and its assignment have the same name.
func (e *Envoy) warmed(name string) {
	if n := (resource.Name{Type: resource.Cluster, Name: name}); e.has[n] != nil {
		delete(e.warming, name)
		delete(e.broken, n)
		e.ready[name] = true
	}
}

func (e *Envoy) remove(n resource.Name) {
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
		if e.names[n] && e.has[n] == nil {
			e.absent[n] = true
		}
		return // an existing listener keeps its routes
	}
	delete(e.has, n)
}

// GiveUp ends the wait for the endpoints of all warming clusters, as Envoy does after WarmingTimeout. It calls report for each
// whose endpoints were not due on a stream that was lost.
func (e *Envoy) GiveUp(report func(cluster string)) {
	for _, name := range slices.Sorted(maps.Keys(e.warming)) {
		if !e.warming[name] {
			report(name)
		}
		e.warmed(name)
	}
	e.Settle()
}

// wild types are subscribed to as a whole.
func wild(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }
