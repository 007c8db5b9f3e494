package parent

import (
	"cmp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// erroredResponse is what the kubelet reports and discards: a body that is cut. A hook it takes for done.
const erroredResponse = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nsonde: no answer from the agent"

const tooLongResponse = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// verdictGrace is half of the second that an injected probe has over the user's timeout: a worker may be that late with a verdict, and the
// guard has the other half to say that there is none.
const verdictGrace = 500 * time.Millisecond

// defaultTimeout is the kubelet's.
const defaultTimeout = time.Second

// table is what the worker tells of the probes.
type table struct {
	probes            map[string]*probe
	shortest, longest time.Duration
	maxHead           int
}

type probe struct {
	id      string
	timeout time.Duration
	hook    bool
}

func (t *table) add(p wire.Probe) {
	if t.probes == nil {
		t.probes = map[string]*probe{}
	}
	if p.ID != "" {
		t.probes[p.ID] = &probe{id: p.ID, timeout: p.Timeout, hook: p.Hook}
	}
	if p.Hook {
		return
	}
	if t.shortest == 0 || p.Timeout < t.shortest {
		t.shortest = p.Timeout
	}
	t.longest = max(t.longest, p.Timeout)
}

// timeLimit is how long a request may be without an answer, none for a hook: for its timeout it waits for a worker, and a worker may be
// late with the verdict. One that names no probe waits no longer than the shortest may, as it could be that one; a worker knows which it is.
func (t *table) timeLimit(p *probe, given bool) (limit time.Duration, ok bool) {
	switch {
	case p != nil && p.hook:
		return 0, false
	case p != nil:
		limit = p.timeout
	case given:
		limit = cmp.Or(t.longest, defaultTimeout)
	default:
		limit = cmp.Or(t.shortest, defaultTimeout)
	}
	if given {
		limit += verdictGrace
	}
	return limit, true
}

// answerErrored answers Errored, unless an answer has begun: cutting that one short says the same.
func (g *guard) answerErrored(c *conn) {
	if c.state == assigned {
		g.send(wire.Header{Kind: wire.Gone, ID: c.id}, nil)
	}
	if c.answered || len(c.out) > 0 {
		g.close(c)
		return
	}
	c.state = closing
	g.write(c, []byte(erroredResponse))
}

func (g *guard) answerTooLong(c *conn) {
	c.state = closing
	g.write(c, []byte(tooLongResponse))
}

// expireConns answers what is late.
func (g *guard) expireConns() {
	g.nextDeadline = time.Time{}
	for _, c := range g.all {
		switch {
		case c.deadline.IsZero():
		case g.now.Before(c.deadline):
			g.nextDeadline = earlier(g.nextDeadline, c.deadline)
		case c.state == closing:
			g.close(c)
		default:
			g.answerErrored(c)
		}
	}
}

// source is whoever asks for a probe, or for none yet.
type source struct {
	probe *probe
	ip    [16]byte
}

func sourceOf(c *conn) source { return source{probe: c.probe, ip: c.remote.ip} }

// shed makes room in a flood: by the oldest connection of the source that has the most of them, hooks excepted.
func (g *guard) shed() {
	type share struct {
		n      int
		oldest *conn
	}
	shares := map[source]share{}
	var most share
	for _, c := range g.all {
		if c.probe != nil && c.probe.hook {
			continue
		}
		s := shares[sourceOf(c)]
		s.n++
		if s.oldest == nil || c.asked.Before(s.oldest.asked) {
			s.oldest = c
		}
		shares[sourceOf(c)] = s
		if s.n > most.n {
			most = s
		}
	}
	switch {
	case most.oldest == nil:
	case most.oldest.state == closing:
		g.close(most.oldest)
	default:
		g.answerErrored(most.oldest)
	}
}

// reclaimRequests takes back what a dead worker has left without an answer. Probes, and hooks that it had not begun, wait for the next;
// a hook that it may have called is not called twice, and not failed for the agent's fault.
func (g *guard) reclaimRequests() (kept, answered int) {
	var back []*conn
	for _, c := range g.all {
		switch {
		case c.state != assigned:
		case c.begun || c.answered || len(c.out) > 0 || c.attempts >= maxAttempts:
			if c.begun && !c.answered {
				g.log.write("ERROR", "worker ended during a hook, which counts as called", "probe", c.probe.id)
			}
			c.state = queued // nobody is to be told
			g.answerErrored(c)
			answered++
		default:
			back = append(back, c)
		}
	}
	slices.SortFunc(back, func(a, b *conn) int { return a.asked.Compare(b.asked) })
	for _, c := range back {
		c.state, c.sent, c.inQueue = queued, 0, true
		g.setDeadline(c)
	}
	g.queue = append(back, g.queue...)
	return len(back), answered
}

// answerAll answers what is left at the end.
func (g *guard) answerAll() {
	for _, c := range g.all {
		g.answerErrored(c)
	}
}
