// Package envoysim simulates Envoy's side of ADS, as far as a server can observe it: it subscribes to the resources
// that clusters and listeners refer to, warms, ACKs and refuses, drains listeners, and reports its state when it
// reconnects. It is for tests, and only shows behaviour that trials with the real Envoy have shown
// (docs/decisions/008-ads-stream.md).
//
// It has no clock but time.Now, no goroutine and no network: its user passes in responses, and receives its requests.
package envoysim

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// WarmingTimeout is Envoy's initial_fetch_timeout, after which a cluster is used without endpoints.
const WarmingTimeout = 15 * time.Second

// Options of an Envoy.
type Options struct {
	Node     string
	Protocol Protocol
	// Star subscribes to all clusters and listeners with the name "*" instead of without names.
	Star bool
	// DrainTime is how long a replaced or removed listener serves its open connections, and keeps its routes.
	DrainTime time.Duration
	// Records sets the node metadata of an agent that reads plaintext records.
	Records bool
}

// Envoy is the state of one Envoy, which outlives its streams. It is not safe for concurrent use.
type Envoy struct {
	Options
	send       func(*Request)
	introduced bool // the node was sent on the stream

	has      map[resource.Name]*Resource // in use, or warming for the first time
	named    map[resource.Name]string    // versions reported on a new stream: only from accepted responses
	unnamed  map[*Resource]bool          // resources from a lost stream that were not reported on this one
	received map[*Resource]bool          // received on this stream
	names    map[resource.Name]bool      // subscribed endpoints and routes
	absent   map[resource.Name]bool      // routes reported not to exist
	broken   map[resource.Name]bool      // refused when new, so that resources that need them cannot work
	extra    map[resource.Name]bool      // subscriptions without need, see Ask
	begun    map[resource.Type]bool      // requested types
	// initialized means that it has received clusters. It requests listeners when they are warm.
	initialized bool
	ready       map[string]bool // clusters that have been warm
	// warming clusters; the value is true if their endpoints were due on a lost stream.
	warming map[string]bool
	active  map[string]*Resource // listeners in use
	// draining are replaced or removed listeners.
	draining []draining
	// emptied are clusters whose endpoints were removed while they warmed. They are in use without endpoints.
	emptied map[string]bool
	refused bool // it has refused a resource

	nonces   map[resource.Type]string
	versions map[resource.Type]string // the last accepted version_info
	withheld []*Request               // responses to updates with clusters, until these are warm
	hold     bool                     // see Hold
}

// New returns an Envoy without resources and without a stream.
func New(o Options) *Envoy {
	return &Envoy{
		Options: o,
		has:     map[resource.Name]*Resource{}, named: map[resource.Name]string{}, unnamed: map[*Resource]bool{},
		received: map[*Resource]bool{},
		names:    map[resource.Name]bool{}, absent: map[resource.Name]bool{}, broken: map[resource.Name]bool{},
		extra: map[resource.Name]bool{}, begun: map[resource.Type]bool{},
		ready: map[string]bool{}, warming: map[string]bool{}, active: map[string]*Resource{}, emptied: map[string]bool{},
		nonces: map[resource.Type]string{}, versions: map[resource.Type]string{},
	}
}

// Connect drops the previous stream, and begins one whose requests go to send: the first request of each type requested
// so far, with its current versions.
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

// Hold delays all answers to responses with clusters, as if the clusters were warming, until it is called with false.
func (e *Envoy) Hold(on bool) {
	e.hold = on
	e.Settle()
}

// Refusals configure which resources of a response to refuse, and how. The zero value refuses nothing.
type Refusals struct {
	// Reason returns why to refuse a resource, "" to accept it.
	Reason func(*Resource) string
	// Whole refuses the whole response because of one resource. The NACK names the resource unless Unnamed is set.
	Whole, Unnamed bool
}

func (r Refusals) reason(p *Resource) string {
	if r.Reason == nil {
		return ""
	}
	return r.Reason(p)
}

// Take applies a response. It answers now or, if clusters warm, when they are warm.
func (e *Envoy) Take(r *Response, refusals Refusals) {
	e.nonces[r.Type] = r.Nonce
	e.initialized = e.initialized || r.Type == resource.Cluster
	first := r.Type == resource.Cluster && !e.begun[resource.Endpoint] && !e.begun[resource.Listener]
	answer := &Request{Type: r.Type, Nonce: r.Nonce, Refusal: e.apply(r, refusals)}
	if answer.Refusal == "" {
		e.versions[r.Type] = r.Version
	}
	e.follow() // Envoy follows before it answers
	if r.Type == resource.Cluster && (e.hold || !first && len(e.warming) > 0) {
		e.withheld = append(e.withheld, answer)
	} else {
		e.request(answer)
	}
	e.Settle()
}

// Settle makes all transitions that have become possible: it sends withheld answers and the first request for
// listeners, activates listeners, and ends drains. Take also calls it.
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

// Gone returns the names that a response removes, sorted. In the state of the world these are the names missing from a
// list.
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

// apply applies the good resources, and returns the message of a NACK in Envoy's words.
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

// name records the versions to report on the next stream, after an accepted response.
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
		if p.Key.Type == resource.Endpoint { // a refusal also ends the wait for endpoints
			e.warmed(p.Key.Name)
		}
	}
}

func (e *Envoy) put(p *Resource) {
	if !wild(p.Key.Type) && !e.names[p.Key] {
		return // sent before the server learned that it is no longer needed
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

// warmed handles endpoints: in Sonde a cluster and its assignment have the same name.
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

// GiveUp ends the wait for the endpoints of all warming clusters, as Envoy does after WarmingTimeout. It calls report
// for each, except those whose endpoints were due on a lost stream.
func (e *Envoy) GiveUp(report func(cluster string)) {
	for _, name := range slices.Sorted(maps.Keys(e.warming)) {
		if !e.warming[name] {
			report(name)
		}
		e.warmed(name)
	}
	e.Settle()
}

// wild reports whether a type is subscribed to as a whole.
func wild(t resource.Type) bool { return t == resource.Cluster || t == resource.Listener }
