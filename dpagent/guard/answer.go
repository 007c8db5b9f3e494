package guard

import (
	"cmp"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// erroredResponse has a body that is cut, which makes a probe Errored: the kubelet reports and discards it. A hook counts
// as done.
const erroredResponse = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nsonde: no answer from the agent"

// failedHookResponse fails a hook behind Envoy, which would answer a closed connection with 503, a success: the kubelet cannot parse
// where this redirect leads, which is an error of the call (Go: net/http/client.go).
const failedHookResponse = "HTTP/1.1 302 Found\r\nLocation: :sonde: no answer from the agent\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

const tooLongResponse = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// verdictGrace is how late a worker may be with a verdict after the user's timeout. It is half of the additional second of
// an injected probe; in the other half the guard answers Errored.
const verdictGrace = 500 * time.Millisecond

// defaultTimeout is the kubelet's default of timeoutSeconds.
const defaultTimeout = time.Second

// table holds the probes, as a worker has sent them.
type table struct {
	limits            map[string]*wire.Limit
	shortest, longest time.Duration
	maxHead           int
}

func (t *table) add(l wire.Limit) {
	if l.ID != "" {
		t.limits[l.ID] = &l
	}
	if l.Hook {
		return
	}
	if t.shortest == 0 || l.Timeout < t.shortest {
		t.shortest = l.Timeout
	}
	t.longest = max(t.longest, l.Timeout)
}

// timeLimit returns how long a request may take until it is answered Errored; ok is false for a hook, which has no limit.
// While it waits for a worker that is its timeout, once a worker has it verdictGrace more. A request without the header
// Sonde-Probe could be for any probe: it waits no longer than the shortest timeout, and a worker has the longest one.
func (t *table) timeLimit(l *wire.Limit, hasWorker bool) (limit time.Duration, ok bool) {
	switch {
	case l != nil && l.Hook:
		return 0, false
	case l != nil:
		limit = l.Timeout
	case hasWorker:
		limit = cmp.Or(t.longest, defaultTimeout)
	default:
		limit = cmp.Or(t.shortest, defaultTimeout)
	}
	if hasWorker {
		limit += verdictGrace
	}
	return limit, true
}

// answerErrored answers Errored. If an answer has begun, it closes the connection, which means the same.
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

// expireConns answers the requests whose deadline has passed.
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

// source is a client of one probe; the limit is nil before the request is read.
type source struct {
	limit *wire.Limit
	ip    [16]byte
}

func sourceOf(c *conn) source { return source{limit: c.limit, ip: c.remote.ip} }

// shed makes room during a flood: it answers the oldest connection of the source that has the most, except hooks. It returns
// false if there is none.
func (g *guard) shed() bool {
	type share struct {
		n      int
		oldest *conn
	}
	shares := map[source]share{}
	var most share
	for _, c := range g.all {
		if c.isHook() {
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
		return false
	case most.oldest.state == closing:
		g.close(most.oldest)
	default:
		g.answerErrored(most.oldest)
	}
	return true
}

// reclaimRequests takes back the requests that a dead worker has not answered. Probes, and hooks that it had not begun, wait
// for the next worker. A hook that it may have called is answered: it must neither be called twice, nor fail because of the
// agent.
func (g *guard) reclaimRequests() (kept, answered int) {
	var back []*conn
	for _, c := range g.all {
		switch {
		case c.state != assigned:
		case c.begun || c.answered || len(c.out) > 0 || c.attempts >= maxAttempts:
			if c.begun && !c.answered {
				g.log.write("ERROR", "worker ended during a hook, which counts as called", "probe", c.limit.ID)
			}
			c.state = queued // there is no worker to tell
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

// answerLast answers a request for which there will be no worker. A hook that was not called fails.
func (g *guard) answerLast(c *conn) {
	switch {
	case !c.isHook() || c.begun:
	case wire.IsSocket(g.address):
		c.state = closing
		g.write(c, []byte(failedHookResponse))
		return
	default:
		g.close(c)
		return
	}
	g.answerErrored(c)
}
