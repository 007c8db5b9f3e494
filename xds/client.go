package xds

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxInFlight is how many replies of one type may be unanswered. Beyond that, changes gather: a client that reads and
// never answers costs no more than this.
const maxInFlight = 16

// client is the protocol of one stream, delta or state of the world, as a state machine without I/O. Its inputs are the
// requests of the proxy (receiveDelta, receiveSotw) and the resources that it should have (want); its output is the next
// response (next). It is not safe for concurrent use.
//
// The order is make before break:
//
//  1. Clusters at once, each followed by its endpoints. Endpoints that only the new Cluster accepts follow its ACK (see
//     deferred).
//  2. Listeners and routes, once no reply with clusters is in flight: an ACK means that the clusters have warmed.
//  3. Removals, once listeners and routes are ACKed, too. Only removals of listeners are sent together with new listeners:
//     nothing refers to a listener, and a new one may take the address of the old one.
type client struct {
	sotw    bool
	desired resource.Desired
	topics  [4]*topic // in the order of resource.Types
	nonces  int
	gather  time.Duration // see gathers
	// heard says that the client has answered a reply of this stream. By then the first request of each type has arrived:
	// Envoy sends them all at once when it reconnects.
	heard bool
}

func newClient(sotw bool) *client {
	c := &client{sotw: sotw}
	for i, t := range resource.Types() {
		c.topics[i] = &topic{kind: t}
	}
	return c
}

// topic returns nil for a type that is not served.
func (c *client) topic(t resource.Type) *topic {
	for _, tp := range c.topics {
		if tp.kind == t {
			return tp
		}
	}
	return nil
}

func (c *client) get(t *topic, name string) *resource.Resource {
	return c.desired.Get(resource.Name{Type: t.kind, Name: name})
}

// all returns all resources of a type that the client should have if it subscribes to everything.
func (c *client) all(t *topic) []*resource.Resource {
	shared, own := c.desired.Shared.Of(t.kind), c.desired.Own.Of(t.kind)
	if len(own) == 0 {
		return shared
	}
	list := slices.Concat(shared, own)
	slices.SortFunc(list, byName)
	return list
}

func byName(a, b *resource.Resource) int { return cmp.Compare(a.Name, b.Name) }

// want sets what the proxy should have. Its cost is proportional to the difference from the last Desired. A proxy that is
// not known, or no longer known, keeps what it has: it never gets an empty configuration for lack of a view.
func (c *client) want(d resource.Desired) {
	if !d.Known() {
		return
	}
	before := c.desired
	c.desired = d
	if !slices.ContainsFunc(c.topics[:], func(t *topic) bool { return t.begun }) {
		return // nothing was asked for
	}
	for _, delta := range []*resource.Delta{
		resource.Diff(before.Shared, d.Shared), resource.Diff(before.Own, d.Own),
	} {
		for i, r := range delta.Put {
			old := delta.Old[i]
			if old == nil { // it may have been in the other set
				old = before.Get(r.Key())
			}
			c.changed(r.Key(), old, r)
		}
		for _, n := range delta.Remove {
			c.changed(n, before.Get(n), c.desired.Get(n))
		}
	}
}

func (c *client) changed(n resource.Name, before, now *resource.Resource) {
	t := c.topic(n.Type)
	if now == nil {
		delete(t.refused, n.Name)
	}
	if !t.subscribes(n.Name) {
		return
	}
	g, ok := t.gaps[n.Name]
	if !ok {
		g = gapOf(before)
	}
	t.note(n.Name, g, now)
}

// requireAnswer makes sure that the client gets an answer for a name that it subscribes to.
func (c *client) requireAnswer(t *topic, name string) {
	g, ok := t.gaps[name]
	if !ok {
		g = gapOf(c.get(t, name))
	}
	g.asked = true
	t.note(name, g, c.get(t, name))
}

// next returns the next response, nil if there is nothing to send now.
func (c *client) next() *reply {
	if !c.desired.Known() {
		return nil
	}
	clusters, endpoints, listeners, routes := c.topics[0], c.topics[1], c.topics[2], c.topics[3]
	if r := c.reply(clusters, answers); r != nil {
		return r
	}
	if c.gathers() > 0 {
		return nil
	}
	if r := c.reply(endpoints, answers); r != nil || len(clusters.inFlight) > 0 {
		return r
	}
	if r := c.reply(listeners, removals); r != nil {
		return r
	}
	if len(listeners.inFlight) > 0 {
		// A warming listener would go live without its route if the client were told that there is none, although a newer
		// version of the listener, which needs another route, may be in flight.
		return c.reply(routes, puts)
	}
	if r := c.reply(routes, answers); r != nil || len(routes.inFlight) > 0 {
		return r
	}
	if c.lastGoodInUse(listeners) || c.lastGoodInUse(routes) {
		return nil // the older versions may still need what is to be removed
	}
	return c.remove(routes, clusters, endpoints)
}

// gathers returns for how long changes of endpoints still gather because the client has not answered the last response
// with endpoints: it gets many changes in one response, while for a client that keeps up nothing is delayed. Listeners,
// routes and removals wait with the endpoints. Endpoints for which a cluster warms, or that a request asked for, never
// wait.
func (c *client) gathers() time.Duration {
	t := c.topic(resource.Endpoint)
	if len(t.inFlight) == 0 || len(t.gaps) == 0 || t.owed {
		return 0
	}
	for _, g := range t.gaps {
		if g.asked || g.unsure {
			return 0
		}
	}
	return c.gather - time.Since(t.inFlight[len(t.inFlight)-1].sent)
}

// resendEndpoints makes sure that the endpoints of each cluster that r changes are sent (again): the cluster warms until
// they arrive, and Envoy does not ask for them.
func (c *client) resendEndpoints(r *reply) {
	endpoints, list := c.topic(resource.Endpoint), r.puts
	if c.sotw { // if it is not certain what the client has, an unchanged cluster in the response may be a change for it
		list = slices.DeleteFunc(slices.Clone(r.full), func(p *resource.Resource) bool {
			return r.indexOf(p.Name) < 0 && !r.topic.gaps[p.Name].unsure
		})
	}
	for _, p := range list {
		if p.Endpoints != "" && endpoints.subscribes(p.Endpoints) {
			c.requireAnswer(endpoints, p.Endpoints)
		}
	}
}

// remove returns the next response with removals. If the client has not answered a reply of this stream yet, an empty
// response comes first: when that is answered, everything that the client requests when it reconnects (such as routes,
// after clusters) has arrived, and is served before the removals.
func (c *client) remove(topics ...*topic) *reply {
	for _, t := range topics {
		if c.heard {
			if r := c.reply(t, removals); r != nil {
				return r
			}
			continue
		}
		for _, g := range t.gaps {
			if t.step(g).gone && len(t.inFlight) == 0 {
				t.owed = true
				return c.reply(t, answers)
			}
		}
	}
	return nil
}

// scope says what a response may hold. Each scope includes those before it.
type scope int

const (
	puts     scope = iota // resources
	answers               // that a requested resource does not exist
	removals              // that a resource of the client's was removed
)

// reply makes the next response of one type. It returns nil if there is nothing to say, or if too many are unanswered.
func (c *client) reply(t *topic, of scope) *reply {
	if !t.begun || len(t.inFlight) >= c.window(t) || len(t.gaps) == 0 && !t.owed {
		return nil
	}
	r := &reply{topic: t}
	c.collect(r, of)
	empty := len(r.puts)+len(r.gone) == 0
	if c.sotw {
		empty = empty || !c.canExpress(r)
		r.full = c.fullList(r)
	}
	r.had = make([]gap, 0, len(r.puts)+len(r.gone))
	for _, p := range r.puts {
		c.recordSent(r, p.Name, p)
	}
	for _, name := range r.gone {
		c.recordSent(r, name, nil)
	}
	if empty && (!t.owed || of == puts) {
		return nil
	}
	c.nonces++
	r.nonce, r.sent = strconv.Itoa(c.nonces), time.Now()
	t.owed, t.lastNonce = false, r.nonce
	t.inFlight = append(t.inFlight, r)
	if t.kind == resource.Cluster {
		c.resendEndpoints(r)
	}
	return r
}

// window is how many replies of a type may be unanswered. A type that is sent whole has a window of 1, since each reply
// repeats the one before: else a bad resource would be refused twice, and with it the other resources of the second reply.
func (c *client) window(t *topic) int {
	if c.sotw && isSentWhole(t.kind) {
		return 1
	}
	return maxInFlight
}

// collect adds to r what can be sent now. A resource that has to be sent alone waits for the others. Endpoints that do not
// exist are answered at once if a cluster waits for them, since its ACK, for which removals wait, depends on them.
func (c *client) collect(r *reply, of scope) {
	t := r.topic
	deferred := c.deferred(t)
	var alone *resource.Resource
	r.puts = make([]*resource.Resource, 0, len(t.gaps))
	for name, g := range t.gaps {
		switch s := t.stepUnlessDeferred(g, deferred[name]); {
		case s.put != nil && g.alone:
			if alone == nil || name < alone.Name {
				alone = s.put
			}
		case s.put != nil:
			r.puts = append(r.puts, s.put)
		case s.unknown && of >= answers, s.gone && of == removals, s.gone && g.asked && t.kind == resource.Endpoint:
			r.gone = append(r.gone, name)
		}
	}
	if len(r.puts) == 0 && alone != nil {
		r.puts = append(r.puts, alone)
	}
	slices.SortFunc(r.puts, byName)
	slices.Sort(r.gone)
}

// recordSent records that the client will have what was sent, and keeps in r what it had before.
func (c *client) recordSent(r *reply, name string, sent *resource.Resource) {
	had := r.topic.gaps[name]
	r.had = append(r.had, had)
	r.topic.note(name, gapOf(sent), had.now)
}
