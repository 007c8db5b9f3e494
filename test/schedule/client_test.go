package schedule

import (
	"fmt"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/xds/resource"
)

const (
	// warmingTimeout is Envoy's initial_fetch_timeout: after it a cluster goes into use without endpoints.
	warmingTimeout = 15 * time.Second
	// endless is a number of responses on one stream that no schedule can need.
	endless = 4000
)

// pace is how long a client needs for a share of the responses.
type pace struct {
	share       float64
	least, most time.Duration
}

// A client that always needs a while longer than the server gathers changes of endpoints falls behind.
var paces = []pace{
	{0.5, 0, time.Millisecond}, {0.5, 0, 100 * time.Millisecond}, {0.5, 0, 5 * time.Second},
	{1, 100 * time.Millisecond, 400 * time.Millisecond},
}

// client is one proxy: an Envoy, and its stream if it has one.
type client struct {
	w      *world
	name   string
	node   string
	sotw   bool
	star   bool // it subscribes to the wildcard by name
	pace   pace
	random *rand.Rand // used only by its session
	envoy  *envoy
	plane  *plane        // the control plane of the pipe
	pipe   *pipe         // nil before the first one
	done   chan struct{} // closed when the session has ended

	slowReader  atomic.Bool   // it reads slowly, see pace and stalled
	stalled     atomic.Int64  // until when it does not read, in nanoseconds
	refusalRate atomic.Int64  // how many of 1000 resources it refuses
	refusalSeed atomic.Uint64 // decides which ones
	responses   atomic.Int64  // number of responses

	// Used only by its session.
	nonces   map[resource.Type]string
	withheld []*request
}

// connected says whether the client has a session.
func (c *client) connected() bool {
	if c.pipe == nil {
		return false
	}
	select {
	case <-c.done:
		return false
	default:
		return true
	}
}

// connect opens a stream. Unless it connects again, the client begins with nothing. So does one that has something which it
// would not name.
func (c *client) connect(again bool) {
	again = again && (c.sotw || !c.envoy.hasUnnamed())
	if !again {
		c.envoy = newEnvoy()
	}
	c.w.note("%s connects, with what it has: %v", c.name, again)
	c.envoy.reconnected()
	c.nonces, c.withheld = map[resource.Type]string{}, nil
	c.done = make(chan struct{})
	c.plane = c.w.plane
	c.pipe = c.plane.open(c.node, c.sotw)
	go c.session(c.pipe, c.done)
}

// disconnect ends the session and the stream. leave only ends the session: the server believes that the stream is alive.
func (c *client) disconnect() {
	c.pipe.cancel()
	<-c.done
}

func (c *client) leave() {
	close(c.pipe.left)
	<-c.done
}

func (c *client) stall(d time.Duration) { c.stalled.Store(time.Now().Add(d).UnixNano()) }

func (c *client) session(p *pipe, done chan<- struct{}) {
	defer close(done)
	c.hello()
	for range endless {
		var late, drained <-chan time.Time
		if len(c.envoy.warming) > 0 {
			late = time.After(warmingTimeout)
		}
		if d := c.envoy.nextDrained(); d > 0 {
			drained = time.After(d)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.left:
			return
		case <-late:
			c.timeOut()
		case <-drained:
			c.settle()
		case r := <-p.down:
			if !c.delay(p) {
				return
			}
			c.take(r)
		}
	}
	c.w.wrong("%s: messages go round for ever", c.name)
}

// delay waits as long as this client needs for a response.
func (c *client) delay(p *pipe) bool {
	// Never zero: events at the same instant of a bubble have no order, so a seed would not always be the same schedule.
	d := 1 + time.Duration(c.random.Int64N(int64(time.Millisecond)))
	if c.slowReader.Load() {
		if c.random.Float64() < c.pace.share {
			d += c.pace.least + time.Duration(c.random.Int64N(int64(c.pace.most-c.pace.least)))
		}
		d = max(d, time.Until(time.Unix(0, c.stalled.Load())))
	}
	select {
	case <-p.ctx.Done():
		return false
	case <-p.left:
		return false
	case <-time.After(d):
		return true
	}
}

// hello sends the first request of each type that the client has ever asked for.
func (c *client) hello() {
	c.envoy.begun[resource.Cluster] = true
	for _, t := range resource.Types() {
		if c.envoy.begun[t] {
			c.ask(t, c.envoy.subscribed(t), nil, true)
		}
	}
}

// ask changes the subscriptions of a type, or makes the first request for it.
func (c *client) ask(t resource.Type, add, remove []string, first bool) {
	c.envoy.begun[t] = true
	r := &request{kind: t, add: add, remove: remove}
	if first && wild(t) && c.star {
		r.add = []string{"*"}
	}
	if first {
		r.versions = map[string]string{}
		for n, v := range c.envoy.named {
			if n.Type == t {
				r.versions[n.Name] = v
			}
		}
	}
	if c.sotw {
		r.nonce = c.nonces[t]
	}
	c.send(r)
}

// send adds the current names to a request and sends it.
func (c *client) send(r *request) {
	r.names = c.envoy.subscribed(r.kind)
	if wild(r.kind) && c.star {
		r.names = []string{"*"}
	}
	c.w.detail("%s asks %s add %v remove %v nonce %q %q", c.name, r.kind.Short(), r.add, r.remove, r.nonce, r.refusal)
	c.pipe.send(r)
}

// take applies a response, and answers it when Envoy would.
func (c *client) take(r *response) {
	c.responses.Add(1)
	e, t := c.envoy, r.kind
	c.w.detail("%s hears %s", c.name, r)
	c.nonces[t] = r.nonce
	had, puts, gone := e.count(t), r.things, r.gone
	if c.sotw && wild(t) {
		gone = e.missing(t, puts)
	}
	first := t == resource.Cluster && !e.begun[resource.Endpoint] && !e.begun[resource.Listener]
	refusal := e.apply(t, puts, gone, c.taste())
	if wild(t) && !e.refused && e.count(t) == 0 && (had > 0 || c.sotw) {
		c.w.wrong("%s is left without any %s: %s", c.name, t.Short(), r)
	}
	c.follow()
	answer := &request{kind: t, nonce: r.nonce, refusal: refusal}
	if t == resource.Cluster && !first && len(e.warming) > 0 {
		c.withheld = append(c.withheld, answer)
	} else {
		c.send(answer)
	}
	c.settle()
}

// follow subscribes to what is needed now. Envoy does so before it answers.
func (c *client) follow() {
	add, remove := c.envoy.follow()
	for _, t := range resource.Types() {
		if len(add[t])+len(remove[t]) > 0 {
			slices.Sort(add[t])
			slices.Sort(remove[t])
			c.ask(t, add[t], remove[t], !c.envoy.begun[t])
		}
	}
}

// settle does what has become possible: it sends withheld ACKs and the first request for listeners, and activates listeners.
func (c *client) settle() {
	if len(c.envoy.warming) == 0 {
		for _, answer := range c.withheld {
			c.send(answer)
		}
		c.withheld = nil
		if !c.envoy.begun[resource.Listener] {
			c.ask(resource.Listener, nil, nil, true)
		}
	}
	c.envoy.activate()
	c.envoy.closeDrained()
	c.follow()
	if what := c.envoy.broken(c.sotw); what != "" {
		c.w.wrong("%s: %s", c.name, what)
	}
}

// timeOut ends the wait for endpoints, which only may take so long if they were due on a stream that was lost, or if they came
// on one, so that the server does not know them, and their cluster is to be removed.
func (c *client) timeOut() {
	desired, _ := c.plane.Translator.Resources(c.node)
	for _, name := range slices.Sorted(maps.Keys(c.envoy.warming)) {
		endpoints := c.envoy.has[resource.Name{Type: resource.Endpoint, Name: name}]
		lost := endpoints != nil && !c.envoy.told[endpoints] && desired.Get(resource.Name{Type: resource.Cluster, Name: name}) == nil
		if !c.envoy.warming[name] && !c.envoy.refused && !lost {
			c.w.wrong("%s: cluster %s gets no endpoints", c.name, name)
		}
		c.envoy.warmed(name)
	}
	c.settle()
}

// taste draws how the client takes the next response.
func (c *client) taste() taste {
	rate, refusalSeed := uint64(c.refusalRate.Load()), c.refusalSeed.Load()
	return taste{
		bad: func(t *thing) bool {
			if rate == 0 {
				return false
			}
			h := fnv.New64a()
			_, _ = fmt.Fprint(h, refusalSeed, t.key.Type, t.key.Name, t.version) // writing to a hash cannot fail
			return h.Sum64()%1000 < rate
		},
		whole: rate > 0 && c.random.IntN(3) == 0, mute: c.random.IntN(2) == 0,
	}
}

// String describes a response for the journal.
func (r *response) String() string {
	words := []string{r.kind.Short()}
	for _, t := range r.things {
		words = append(words, t.key.Name+"@"+t.version[:4])
	}
	for _, name := range r.gone {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ") + ", nonce " + r.nonce
}
