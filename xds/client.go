package xds

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxInFlight is how many replies of one type may be without an answer. Beyond that changes gather: a client that
// reads and never answers costs no more than this.
const maxInFlight = 16

// client is the protocol of one stream as a state machine, delta or state of the world, without I/O: it is told what
// the proxy asks (receiveDelta, receiveSotw) and should have (want), and gives what is to be sent (next). It is not
// safe for concurrent use.
//
// The order is make before break. Clusters are sent at once, and their endpoints right behind them; endpoints that only
// the new Cluster accepts follow its ACK (see early). Listeners and
// routes wait until no reply with clusters is without an ACK, which means warmed. What must go, goes last: when
// listeners and routes were ACKed, too. Only listeners that must go leave with the new ones, since no one refers to a
// listener, and a new one may take the old one's address.
type client struct {
	sotw    bool
	desired resource.Desired
	topics  [4]*topic // in the order of resource.Types
	nonces  int
	gather  time.Duration // see gathers
	// heard: the client answered to a reply of this stream. By then the first request of each type, all of which
	// Envoy sends at once when it reconnects, has come.
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

// all returns what the client should have of a type, if it subscribes to all.
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

// want sets what the proxy should have. It costs what differs from the last one, not what there is. A proxy that is
// not known (any more) keeps what it has: an empty configuration is never sent for want of a picture.
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

// ask makes sure that the client gets an answer about a name that it subscribes to.
func (c *client) ask(t *topic, name string) {
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
		// A listener that warms would go live without a route if it were told that there is none, though a newer
		// one, which needs another route, may be on its way.
		return c.reply(routes, puts)
	}
	if r := c.reply(routes, answers); r != nil || len(routes.inFlight) > 0 {
		return r
	}
	if c.lastGoodInUse(listeners) || c.lastGoodInUse(routes) {
		return nil // which may need what should go
	}
	return c.remove(routes, clusters, endpoints)
}

// gathers is how long changes of endpoints still gather for a client that has not answered to the last ones: it gets
// many changes at once instead of many responses, and none is later for it where the client keeps up. What comes after
// endpoints waits with them. Nothing waits that a cluster warms for, or that a request asked for.
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

// askEndpoints has the endpoints sent of each cluster that r changes: it warms until they come, and Envoy does not ask
// for them again.
func (c *client) askEndpoints(r *reply) {
	endpoints, list := c.topic(resource.Endpoint), r.puts
	if c.sotw { // an old one that is sent beside may be a change, too, to a client that has something unknown
		list = slices.DeleteFunc(slices.Clone(r.full), func(p *resource.Resource) bool {
			return r.indexOf(p.Name) < 0 && !r.topic.gaps[p.Name].unsure
		})
	}
	for _, p := range list {
		if p.Endpoints != "" && endpoints.subscribes(p.Endpoints) {
			c.ask(endpoints, p.Endpoints)
		}
	}
}

// remove returns the next response that takes something away. On a stream that has not heard from the client since
// its first requests, an empty one comes before: whatever the client asks for when it reconnects (routes after
// clusters) has come when that is answered, and is served first.
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

// scope is what a response may hold; each holds what the ones before it do.
type scope int

const (
	puts     scope = iota // what is there
	answers               // that what the client asks for is not there
	removals              // that what the client has is no longer there
)

// reply makes a response of what the client lacks of one type; nil if there is nothing to say or too much is
// unanswered.
func (c *client) reply(t *topic, of scope) *reply {
	if !t.begun || len(t.inFlight) >= c.window(t) || len(t.gaps) == 0 && !t.owed {
		return nil
	}
	r := &reply{topic: t}
	c.collect(r, of)
	empty := len(r.puts)+len(r.gone) == 0
	if c.sotw {
		empty = empty || !c.sayable(r)
		r.full = c.fullOf(r)
	}
	r.had = make([]gap, 0, len(r.puts)+len(r.gone))
	for _, p := range r.puts {
		c.told(r, p.Name, p)
	}
	for _, name := range r.gone {
		c.told(r, name, nil)
	}
	if empty && (!t.owed || of == puts) {
		return nil
	}
	c.nonces++
	r.nonce, r.sent = strconv.Itoa(c.nonces), time.Now()
	t.owed, t.lastNonce = false, r.nonce
	t.inFlight = append(t.inFlight, r)
	if t.kind == resource.Cluster {
		c.askEndpoints(r)
	}
	return r
}

// window is how many replies of a type may be without an answer. A whole list repeats what the one before it held: it
// waits for the answer, else one bad resource would be refused twice, and the second time for no fault of its own.
func (c *client) window(t *topic) int {
	if c.sotw && isFull(t.kind) {
		return 1
	}
	return maxInFlight
}

// collect finds what can be sent. A name that must go alone waits for those that need not. Endpoints that are gone
// are said at once if a cluster waits for them: it withholds the ACK for which other removals wait.
func (c *client) collect(r *reply, of scope) {
	t := r.topic
	early := c.early(t)
	var alone *resource.Resource
	r.puts = make([]*resource.Resource, 0, len(t.gaps))
	for name, g := range t.gaps {
		switch s := t.stepOrHeld(g, early[name]); {
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

// told records that the client will have what was sent, and in r what it had before.
func (c *client) told(r *reply, name string, sent *resource.Resource) {
	had := r.topic.gaps[name]
	r.had = append(r.had, had)
	r.topic.note(name, gapOf(sent), had.now)
}
