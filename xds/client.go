package xds

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

// maxInFlight is how many replies of one type may wait for their ACK or NACK. Further changes wait until one arrives, so a
// client that reads and never answers costs no more memory than these replies.
const maxInFlight = 16

// client is the server's side of one stream, delta or state of the world, as a state machine without I/O. Its inputs are
// the requests of the proxy (receiveDelta, receiveSotw) and the resources that the proxy should have (setDesired). Its
// output is the next response (next). It is not safe for concurrent use.
//
// The order is make before break:
//
//  1. Clusters at once, each followed by its endpoints. Endpoints whose peers only the new Cluster accepts are sent after
//     its ACK (see deferred).
//  2. Listeners and routes, when no reply with clusters is in flight: an ACK means that the clusters have warmed.
//  3. Removals, when listeners and routes are ACKed, too, and the listeners that these replaced have drained (see
//     removal.go). Only removals of listeners are sent earlier, together with new listeners: nothing refers to a listener,
//     and a new one may need the address of the old one.
type client struct {
	sotw       bool
	desired    resource.Desired
	topics     [4]*topic // in the order of resource.Types
	unserved   []*topic  // of types that are not served, see addUnserved
	nonces     int
	suspects   int              // number of groups of suspects so far, see refuse
	gatherTime time.Duration    // see gatherDelay
	drainTime  time.Duration    // how long a listener that is replaced or removed still serves its connections
	nextDue    time.Time        // when a removal or a retry that waits is due; zero if none is
	now        func() time.Time // the clock
	// hasAnswered says that the client has ACKed or NACKed a reply of this stream. By then its first request of each type has
	// arrived, since Envoy sends them all at once when it reconnects.
	hasAnswered bool
}

func newClient(sotw bool) *client {
	c := &client{sotw: sotw, now: time.Now}
	for i, t := range resource.Types() {
		c.topics[i] = &topic{kind: t}
	}
	return c
}

// topic returns nil for a type that is not served, unless the client has asked for it.
func (c *client) topic(t resource.Type) *topic {
	for _, tp := range c.topics {
		if tp.kind == t {
			return tp
		}
	}
	for _, tp := range c.unserved {
		if tp.kind == t {
			return tp
		}
	}
	return nil
}

// get returns what the client should have of a name, nil for nothing.
func (c *client) get(t *topic, name string) *resource.Resource {
	return c.desired.Get(resource.Name{Type: t.kind, Name: name})
}

// all returns all resources of a type that a client which subscribes to the wildcard should have.
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

// setDesired sets what the proxy should have. Its cost is proportional to the difference from the last Desired. A proxy that
// is not known, or no longer known, keeps what it has. It never gets an empty configuration just because it is in no view.
func (c *client) setDesired(d resource.Desired) {
	if !d.Known() {
		return
	}
	before := c.desired
	c.desired = d
	if !slices.ContainsFunc(c.topics[:], func(t *topic) bool { return t.requested }) {
		return // the client has requested nothing yet
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

// changed records that the client should have now instead of before, if it subscribes to the name.
func (c *client) changed(n resource.Name, before, now *resource.Resource) {
	t := c.topic(n.Type)
	if now == nil {
		delete(t.refused, n.Name)
	}
	if !t.subscribes(n.Name) {
		return
	}
	g, ok := t.gap(n.Name)
	if !ok {
		g = gapOf(before)
	}
	if now == nil && g.last == nil {
		g.wanted = before
	}
	t.setGap(n.Name, g, now)
}

// requireAnswer makes sure that a response mentions a name that the client subscribes to, even if nothing differs.
func (c *client) requireAnswer(t *topic, name string) {
	g, ok := t.gap(name)
	if !ok {
		g = gapOf(c.get(t, name))
	}
	g.mustAnswer = true
	t.setGap(name, g, c.get(t, name))
}

// next returns the next response, or nil if there is nothing to send now.
func (c *client) next() *reply {
	if !c.desired.Known() {
		return nil
	}
	c.nextDue = time.Time{}
	for _, t := range c.unserved {
		if r := c.reply(t, answers); r != nil {
			return r
		}
	}
	c.retryRefused()
	clusters, endpoints, listeners, routes := c.topics[0], c.topics[1], c.topics[2], c.topics[3]
	if r := c.reply(clusters, answers); r != nil {
		return r
	}
	if c.gatherDelay() > 0 {
		return nil
	}
	if r := c.reply(endpoints, answers); r != nil || len(clusters.inFlight) > 0 {
		return r
	}
	if r := c.reply(listeners, removals); r != nil {
		return r
	}
	if len(listeners.inFlight) > 0 {
		// Say nothing about missing routes yet. Envoy puts a warming listener into use when it learns that the listener's
		// route does not exist, but a newer version of the listener, which needs another route, may be in flight.
		return c.reply(routes, puts)
	}
	if r := c.reply(routes, answers); r != nil || len(routes.inFlight) > 0 {
		return r
	}
	if c.lastGoodInUse(listeners) || c.lastGoodInUse(routes) {
		return nil // the older versions may still need what would be removed
	}
	return c.remove(routes, clusters, endpoints)
}

// gatherDelay returns for how long changes of endpoints still wait, to be sent together, because the client has not yet
// answered the last response with endpoints. So a slow client gets many changes in one response, and a client that keeps
// up gets each change at once. Listeners, routes and removals wait with the endpoints. Endpoints never wait if a cluster warms
// until they arrive, or if a request asked for them.
func (c *client) gatherDelay() time.Duration {
	t := c.topic(resource.Endpoint)
	if len(t.inFlight) == 0 || len(t.gaps) == 0 || t.answerDue {
		return 0
	}
	changes := false
	for _, g := range t.gaps {
		if g.mustAnswer || g.uncertain {
			return 0
		}
		changes = changes || g.now != nil
	}
	if !changes {
		return 0
	}
	return c.gatherTime - c.now().Sub(t.inFlight[len(t.inFlight)-1].sent)
}

// wait returns after how long next may return a response although nothing has been received or has changed until then, zero
// if it will not. Call it when next has returned nil.
func (c *client) wait() time.Duration {
	wait := max(c.gatherDelay(), 0)
	if c.nextDue.IsZero() {
		return wait
	}
	due := max(c.nextDue.Sub(c.now()), 1)
	if wait == 0 {
		return due
	}
	return min(wait, due)
}

// dueAt makes wait end at that time, at the latest.
func (c *client) dueAt(t time.Time) {
	if c.nextDue.IsZero() || t.Before(c.nextDue) {
		c.nextDue = t
	}
}

// lastGoodInUse reports whether the client still uses an older version of a resource because it refused the newest one.
func (c *client) lastGoodInUse(t *topic) bool {
	for name := range t.refused {
		g, ok := t.gaps[name]
		if ok && g.version != "" && g.now != nil && t.refuses(g.now) {
			return true
		}
	}
	return false
}

// resendEndpoints makes sure that the endpoints of each cluster that r changes are sent, or sent again. The cluster warms
// until they arrive, and Envoy does not ask for them.
func (c *client) resendEndpoints(r *reply) {
	endpoints, list := c.topic(resource.Endpoint), r.puts
	if c.sotw { // an unchanged cluster may be a change for a client that may have another version
		list = slices.DeleteFunc(slices.Clone(r.full), func(p *resource.Resource) bool {
			g, _ := r.topic.gap(p.Name)
			return r.indexOf(p.Name) < 0 && !g.uncertain
		})
	}
	for _, p := range list {
		if p.Endpoints != "" && endpoints.subscribes(p.Endpoints) {
			c.requireAnswer(endpoints, p.Endpoints)
		}
	}
}

// scope says what a response may contain. Each scope includes those before it.
type scope int

const (
	puts     scope = iota // resources
	answers               // and that a requested resource does not exist
	removals              // and removals of resources that the client has
)

// reply makes the next response of one type, or returns nil if there is nothing to send or the window is full.
func (c *client) reply(t *topic, of scope) *reply {
	if !t.requested || len(t.inFlight) >= c.window(t) || len(t.gaps) == 0 && !t.answerDue {
		return nil
	}
	r := &reply{topic: t}
	c.collect(r, of)
	emptyIsDue := t.answerDue && of != puts
	if len(r.puts)+len(r.removed) == 0 && !emptyIsDue {
		return nil
	}
	says := true
	if c.sotw {
		says = c.canExpress(r)
		r.full = c.fullList(r)
	}
	r.before = make([]gap, 0, len(r.puts)+len(r.removed))
	for _, p := range r.puts {
		c.recordSent(r, p.Name, p)
	}
	for _, name := range r.removed {
		c.recordSent(r, name, nil)
	}
	if !says && !emptyIsDue {
		return nil
	}
	c.nonces++
	r.nonce, r.sent = strconv.Itoa(c.nonces), c.now()
	t.answerDue, t.lastNonce = false, r.nonce
	t.inFlight = append(t.inFlight, r)
	if t.kind == resource.Cluster {
		c.resendEndpoints(r)
	}
	return r
}

// window returns how many replies of a type may be in flight. It is 1 for a type that is sent whole: each reply repeats the
// one before, so a second reply would repeat a bad resource, and be refused with its other resources, too.
func (c *client) window(t *topic) int {
	if c.sotw && isSentWhole(t.kind) {
		return 1
	}
	return maxInFlight
}

// recordSent records that the client has what is being sent, and keeps in r the gap from before, in case of a NACK.
func (c *client) recordSent(r *reply, name string, sent *resource.Resource) {
	before := r.topic.gaps[name]
	r.before = append(r.before, before)
	g := gapOf(sent)
	g.due = before.due
	r.topic.setGap(name, g, before.now)
}
