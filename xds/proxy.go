package xds

import (
	"slices"
	"strconv"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxInFlight is how many responses of one type may wait for their ACK or NACK. Further changes wait until an answer
// arrives, so a proxy that reads and never answers costs no more memory than these responses.
const maxInFlight = 16

// proxy is the server's state of the proxy at the other end of a stream, delta or state of the world: a state machine
// without I/O. Its inputs are the requests of the proxy (receiveDelta, receiveSotw) and the resources that the proxy
// should have (setDesired). Its output is the next response (next). It is not safe for concurrent use.
//
// The order is make before break:
//
//  1. Clusters at once, each followed by its endpoints. Endpoints whose peers only the new Cluster accepts are sent
//     after its ACK (see deferred).
//  2. Listeners and routes, when no response with clusters is in flight: an ACK means that the clusters have warmed.
//  3. Removals, when listeners and routes are ACKed, too, and the listeners that these replaced have drained (see
//     removal.go). Only removals of listeners are sent earlier, together with new listeners: nothing refers to a
//     listener, and a new one may need the address of the old one.
type proxy struct {
	sotw          bool
	desired       resource.Desired
	subscriptions [4]*subscription // in the order of resource.Types
	unserved      []*subscription  // of unserved types, see addUnserved
	nonces        int
	suspects      int              // number of groups of suspects so far, see refuse
	gatherTime    time.Duration    // see gatherDelay
	drainTime     time.Duration    // how long a replaced or removed listener still serves its connections
	nextDue       time.Time        // when a waiting removal or retry is due; zero if none waits
	now           func() time.Time // the clock
	inFlightBytes int              // bytes of all responses that are neither ACKed nor NACKed
	statedBytes   int              // bytes of nonexistent names that the proxy reported to have
	asked         int              // number of names in the last request, and of resources resent because of it
	acked         bool             // the last request was the ACK of a response in flight
	// hasAnswered means that the proxy has ACKed or NACKed a response of this stream. By then its first request of each
	// type has arrived, since Envoy sends them all at once when it reconnects.
	hasAnswered bool
}

func newProxy(sotw bool) *proxy {
	p := &proxy{sotw: sotw, now: time.Now}
	for i, t := range resource.Types() {
		p.subscriptions[i] = &subscription{kind: t}
	}
	return p
}

// subscription returns nil for a type that is not served, unless the proxy has requested it.
func (p *proxy) subscription(t resource.Type) *subscription {
	for _, s := range p.subscriptions {
		if s.kind == t {
			return s
		}
	}
	for _, s := range p.unserved {
		if s.kind == t {
			return s
		}
	}
	return nil
}

// get returns the desired resource of a name, or nil.
func (p *proxy) get(s *subscription, name string) *resource.Resource {
	return p.desired.Get(resource.Name{Type: s.kind, Name: name})
}

// all returns all desired resources of a type, for a proxy that subscribes to the wildcard.
func (p *proxy) all(s *subscription) []*resource.Resource {
	if shared := p.desired.Shared.Of(s.kind); len(p.desired.Node.Of(s.kind))+len(p.desired.Own.Of(s.kind)) == 0 {
		return shared
	}
	return p.desired.Of(s.kind)
}

// setDesired sets the desired resources. Its cost is proportional to the difference from the last Desired. A proxy that
// is unknown or no longer known keeps what it has: it never gets an empty configuration just because it is in no view.
func (p *proxy) setDesired(d resource.Desired) {
	if !d.Known() {
		return
	}
	before := p.desired
	p.desired = d
	if !slices.ContainsFunc(p.subscriptions[:], func(s *subscription) bool { return s.requested }) {
		return // the proxy has requested nothing yet
	}
	for _, delta := range []resource.Delta{
		resource.Diff(before.Shared, d.Shared), resource.Diff(before.Node, d.Node), resource.Diff(before.Own, d.Own),
	} {
		for _, c := range delta {
			name := c.Key()
			if c.Old == nil { // the resource may have been in another set
				c.Old = before.Get(name)
			}
			if c.New == nil { // the resource may now be in another set
				c.New = p.desired.Get(name)
			}
			p.changed(name, c.Old, c.New)
		}
	}
}

// changed records that the desired resource of a name changes from before to now, if the proxy subscribes to the name.
func (p *proxy) changed(n resource.Name, before, now *resource.Resource) {
	s := p.subscription(n.Type)
	if now == nil {
		delete(s.refused, n.Name)
	}
	if !s.subscribes(n.Name) {
		return
	}
	u, ok := s.update(n.Name)
	if !ok {
		u = updateFrom(before)
	}
	if now == nil && u.last == nil {
		u.wanted = before
	}
	s.setPending(n.Name, u, now)
}

// requireMention makes sure that a response mentions a name that the proxy subscribes to, even if it has not changed.
func (p *proxy) requireMention(s *subscription, name string) {
	p.asked++
	u, ok := s.update(name)
	if !ok {
		u = updateFrom(p.get(s, name))
	}
	u.mustMention = true
	s.setPending(name, u, p.get(s, name))
}

// next returns the next response, or nil if there is nothing to send now.
func (p *proxy) next() *response {
	if !p.desired.Known() {
		return nil
	}
	p.nextDue = time.Time{}
	for _, s := range p.unserved {
		if r := p.respond(s, notFound); r != nil {
			return r
		}
	}
	p.retryRefused()
	clusters, endpoints, listeners, routes := p.subscriptions[0], p.subscriptions[1], p.subscriptions[2],
		p.subscriptions[3]
	if r := p.respond(clusters, notFound); r != nil {
		return r
	}
	if p.gatherDelay() > 0 {
		return nil
	}
	if r := p.respond(endpoints, notFound); r != nil || len(clusters.inFlight) > 0 {
		return r
	}
	if r := p.respond(listeners, removals); r != nil {
		return r
	}
	if len(listeners.inFlight) > 0 {
		// Do not report missing routes yet. Envoy activates a warming listener when it learns that the listener's route does
		// not exist, but a newer version of the listener, which needs another route, may be in flight.
		return p.respond(routes, additions)
	}
	if r := p.respond(routes, notFound); r != nil || len(routes.inFlight) > 0 {
		return r
	}
	if p.lastGoodInUse(listeners) || p.lastGoodInUse(routes) {
		return nil // older versions in use may still need the removed resources
	}
	return p.remove(routes, clusters, endpoints)
}

// gatherDelay returns how long changes of endpoints still wait to be sent together, because the proxy has not yet
// answered the last response with endpoints. So a slow proxy gets many changes in one response, and a fast proxy gets
// each change at once. Listeners, routes and removals wait with the endpoints. Endpoints never wait if a cluster warms
// until they arrive, or if a request asked for them.
func (p *proxy) gatherDelay() time.Duration {
	s := p.subscription(resource.Endpoint)
	if len(s.inFlight) == 0 || len(s.pending) == 0 || s.responseDue {
		return 0
	}
	changes := false
	for _, u := range s.pending {
		if u.mustMention || u.uncertain {
			return 0
		}
		changes = changes || u.now != nil
	}
	if !changes {
		return 0
	}
	return p.gatherTime - p.now().Sub(s.inFlight[len(s.inFlight)-1].sent)
}

// wait returns the delay after which next may return a response even if nothing is received or changes until then, or
// zero if it will not. Call it when next has returned nil.
func (p *proxy) wait() time.Duration {
	wait := max(p.gatherDelay(), 0)
	if p.nextDue.IsZero() {
		return wait
	}
	due := max(p.nextDue.Sub(p.now()), 1)
	if wait == 0 {
		return due
	}
	return min(wait, due)
}

// dueAt makes wait end at t at the latest.
func (p *proxy) dueAt(t time.Time) {
	if p.nextDue.IsZero() || t.Before(p.nextDue) {
		p.nextDue = t
	}
}

// lastGoodInUse reports whether the proxy uses or may use an older version of a resource because it refused the newest
// one.
func (p *proxy) lastGoodInUse(s *subscription) bool {
	for name := range s.refused {
		u, ok := s.pending[name]
		if ok && (u.version != "" || s.mayUse(name, u)) && u.now != nil && s.refuses(u.now) {
			return true
		}
	}
	return false
}

// resendEndpoints makes sure that the endpoints of each cluster that r changes are sent, or sent again. The cluster
// warms until they arrive, and Envoy does not ask for them.
func (p *proxy) resendEndpoints(r *response) {
	endpoints := p.subscription(resource.Endpoint)
	resend := func(cluster *resource.Resource) {
		if name := cluster.Endpoints; name != "" && endpoints.subscribes(name) {
			p.requireMention(endpoints, name)
		}
	}
	for _, m := range r.resources {
		resend(m.resource)
	}
	for _, cluster := range r.full {
		// An unchanged cluster may be a change for a proxy with an unknown version.
		if u, _ := r.subscription.update(cluster.Name); u.uncertain {
			resend(cluster)
		}
	}
}

// scope limits the content of a response. Each scope includes those before it.
type scope int

const (
	additions scope = iota // resources
	notFound               // and that a requested resource does not exist
	removals               // and removals of resources that the proxy has
)

// respond makes the next response of one type, or returns nil if there is nothing to send or the window is full.
func (p *proxy) respond(s *subscription, of scope) *response {
	if !s.requested || p.inFlightIsFull(s) || len(s.pending) == 0 && !s.responseDue {
		return nil
	}
	r := &response{subscription: s}
	p.collect(r, of)
	emptyIsDue := s.responseDue && of != additions
	if len(r.resources)+len(r.removed) == 0 && !emptyIsDue {
		return nil
	}
	says := true
	if p.sotw {
		says = canExpress(r)
		r.full = p.fullList(r)
	}
	r.recordSent()
	if !says && !emptyIsDue {
		return nil
	}
	p.nonces++
	r.nonce, r.sent = strconv.Itoa(p.nonces), p.now()
	s.responseDue, s.lastNonce = false, r.nonce
	s.inFlight = append(s.inFlight, r)
	r.size = r.keptBytes()
	p.inFlightBytes += r.size
	if s.kind == resource.Cluster {
		p.resendEndpoints(r)
	}
	return r
}

// window returns how many responses of a type may be in flight. It is 1 for a type that is sent whole: each response
// repeats the one before, so a second response would repeat a bad resource, and be refused together with good ones.
func (p *proxy) window(s *subscription) int {
	if p.sotw && isSentWhole(s.kind) {
		return 1
	}
	return maxInFlight
}
