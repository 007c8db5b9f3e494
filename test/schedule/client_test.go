package schedule

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sonde-mesh/sonde/internal/testing/envoysim"
	"github.com/sonde-mesh/sonde/xds/resource"
)

// endless is a number of responses on one stream that no schedule can need.
const endless = 4000

// pace is a client's delay for a share of the responses.
type pace struct {
	share       float64
	least, most time.Duration
}

// A client that always needs slightly longer than the server's time for gathering changes of endpoints
// falls behind.
var paces = []pace{
	{0.5, 0, time.Millisecond}, {0.5, 0, 100 * time.Millisecond}, {0.5, 0, 5 * time.Second},
	{1, 100 * time.Millisecond, 400 * time.Millisecond},
}

// client is one proxy: an Envoy, and its stream, if any.
type client struct {
	s       *simulation
	name    string
	options envoysim.Options
	pace    pace
	random  *rand.Rand // used only by its session
	envoy   *envoysim.Envoy
	plane   *plane        // the control plane of the pipe
	pipe    *pipe         // nil before the first one
	done    chan struct{} // closed when the session has ended

	slowReader  atomic.Bool   // reads slowly, see pace and stalled
	stalled     atomic.Int64  // does not read until then, in nanoseconds
	refusalRate atomic.Int64  // how many of 1000 resources it refuses
	refusalSeed atomic.Uint64 // determines which ones
	responses   atomic.Int64  // number of responses
}

func (c *client) node() string { return c.options.Node }

// connected returns whether the client has a session.
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

// connect opens a stream. The client keeps its state only if it reconnects, and only if it names all its resources.
func (c *client) connect(again bool) {
	again = again && c.envoy != nil && (c.options.Protocol == envoysim.SotW || !c.envoy.HasUnnamed())
	if !again {
		c.envoy = envoysim.New(c.options)
	}
	c.s.Note("%s connects, with what it has: %v", c.name, again)
	c.done = make(chan struct{})
	c.plane = c.s.plane
	c.pipe = c.plane.open(c.node(), c.options.Protocol)
	go c.session(c.pipe, c.done)
}

// disconnect ends the session and the stream. vanish only ends the session: for the server, the stream is alive.
func (c *client) disconnect() {
	c.pipe.cancel()
	<-c.done
}

func (c *client) vanish() {
	close(c.pipe.vanished)
	<-c.done
}

func (c *client) stall(d time.Duration) { c.stalled.Store(time.Now().Add(d).UnixNano()) }

func (c *client) session(p *pipe, done chan<- struct{}) {
	defer close(done)
	c.envoy.Connect(func(r *envoysim.Request) {
		c.s.Detail("%s asks %s add %v remove %v nonce %q %q", c.name, r.Type.Short(), r.Add, r.Remove, r.Nonce, r.Refusal)
		p.send(r)
	})
	for range endless {
		var late, drained <-chan time.Time
		if c.envoy.Warming() > 0 {
			late = time.After(envoysim.WarmingTimeout)
		}
		if d := c.envoy.NextDrained(); d > 0 {
			drained = time.After(d)
		}
		select {
		case <-p.ctx.Done():
			return
		case <-p.vanished:
			return
		case <-late:
			c.giveUp()
		case <-drained:
			c.envoy.Settle()
		case r := <-p.down:
			if !c.delay(p) {
				return
			}
			c.take(r)
		}
		c.check()
	}
	c.s.Wrong("%s: messages go round for ever", c.name)
}

// delay waits for as long as this client needs for a response.
func (c *client) delay(p *pipe) bool {
	// Never zero: events at the same instant of a bubble have no order, so a seed would not always give the same
	// schedule.
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
	case <-p.vanished:
		return false
	case <-time.After(d):
		return true
	}
}

func (c *client) take(r *envoysim.Response) {
	c.responses.Add(1)
	c.s.Detail("%s gets %s", c.name, describe(r))
	had := c.envoy.Count(r.Type)
	c.envoy.Take(r, c.refusals())
	whole := r.Type == resource.Cluster || r.Type == resource.Listener
	if whole && !c.envoy.Refused() && c.envoy.Count(r.Type) == 0 && (had > 0 || c.options.Protocol == envoysim.SotW) {
		c.s.Wrong("%s loses its last %s: %s", c.name, r.Type.Short(), describe(r))
	}
}

// check checks that no traffic is affected. TestModel of package xds shows what a server may do after a refusal,
// which depends on the refused resource.
func (c *client) check() {
	if lacks := c.envoy.Lacks(); len(lacks) > 0 && !c.envoy.Refused() {
		c.s.Wrong("%s: %s", c.name, lacks[0])
	}
}

// giveUp ends the wait for endpoints. The wait is also legitimate if the endpoints were sent on a lost stream, so
// that the server does not know about them, and their cluster is to be removed.
func (c *client) giveUp() {
	desired, _ := c.plane.Translator.Resources(c.node())
	c.envoy.GiveUp(func(cluster string) {
		endpoints := c.envoy.Get(resource.Name{Type: resource.Endpoint, Name: cluster})
		removed := desired.Get(resource.Name{Type: resource.Cluster, Name: cluster}) == nil
		if c.envoy.Refused() {
			return
		}
		if endpoints == nil || c.envoy.Received(endpoints) || !removed {
			c.s.Wrong("%s: cluster %s gets no endpoints", c.name, cluster)
		}
	})
}

// refusals draws which resources of the next response the client refuses.
func (c *client) refusals() envoysim.Refusals {
	rate, seed := uint64(c.refusalRate.Load()), c.refusalSeed.Load()
	return envoysim.Refusals{
		Reason: func(r *envoysim.Resource) string {
			if rate == 0 {
				return ""
			}
			h := fnv.New64a()
			_, _ = fmt.Fprint(h, seed, r.Key.Type, r.Key.Name, r.Version) // writing to a hash cannot fail
			if h.Sum64()%1000 < rate {
				return "why"
			}
			return ""
		},
		Whole: rate > 0 && c.random.IntN(3) == 0, Unnamed: c.random.IntN(2) == 0,
	}
}

// describe describes a response for the journal.
func describe(r *envoysim.Response) string {
	words := []string{r.Type.Short()}
	for _, p := range r.Put {
		words = append(words, p.Key.Name+"@"+p.Version[:4])
	}
	for _, name := range r.Gone {
		words = append(words, "-"+name)
	}
	return strings.Join(words, " ") + ", nonce " + r.Nonce
}
