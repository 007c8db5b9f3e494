package guard

import (
	"cmp"
	"slices"
	"strconv"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// erroredResponse has a truncated body, which makes a probe Errored: the kubelet reports and discards the result. To a
// hook it means success.
const erroredResponse = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\nConnection: close\r\n\r\nsonde: no answer from the agent"

// heldResponse is a redirect that the kubelet does not follow: the liveness probe passes with a warning.
var heldResponse = []byte("HTTP/1.1 302 Found\r\nLocation: " + wire.HeldLocation +
	"\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: " + strconv.Itoa(len(heldBody)) +
	"\r\nConnection: close\r\n\r\n" + heldBody)

const heldBody = wire.HeldText + "no answer from the agent"

const tooLongResponse = "HTTP/1.1 431 Request Header Fields Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"

// verdictGrace is how late a worker may send a verdict after the user's timeout. It is half of the additional second of
// an injected probe; in the other half the guard answers Errored.
const verdictGrace = 500 * time.Millisecond

// alive is the limit of the kubelet's liveness request to the agent. It is so long that the kubelet's request times out
// first if the agent is dead: the kubelet would discard Errored. Package mesh has the same ID.
var alive = wire.Limit{ID: "kuma-sidecar-liveness", Timeout: 10 * time.Minute}

// defaultTimeout is the kubelet's default of timeoutSeconds.
const defaultTimeout = time.Second

// table holds the probes that a worker has sent.
type table struct {
	limits            map[string]*wire.Limit
	shortest, longest time.Duration
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

// timeLimit returns how long a request may take before the guard answers Errored; ok is false for a hook, which has no
// limit. A request may wait for a worker until its timeout, and a worker has verdictGrace more. A request without the
// header Sonde-Probe could be for any probe, so it waits at most for the shortest timeout, and a worker gets the
// longest one.
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

// answerErrored answers Errored, or passes a liveness probe with a warning if the worker has configured that. If part
// of an answer was sent, it closes the connection, which has the same effect. It also closes a gRPC connection, since
// gRPC has no such answer.
func (g *guard) answerErrored(c *conn) {
	if c.state == assigned {
		g.send(wire.Header{Kind: wire.Gone, ID: c.id}, nil)
	}
	if c.answered || len(c.out) > 0 || c.port.GRPC {
		g.close(c)
		return
	}
	c.state = closing
	g.write(c, g.unanswered(c.limit))
}

// unanswered returns the response to a request that no worker has answered.
func (g *guard) unanswered(l *wire.Limit) []byte {
	if g.warns && l != nil && l.Liveness {
		return heldResponse
	}
	return []byte(erroredResponse)
}

// refuse rejects a request that is too long.
func (g *guard) refuse(c *conn) {
	if c.port.GRPC {
		g.close(c)
		return
	}
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
		case c.state >= closing:
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

// sourceOf treats an IPv6 /64 network as one source, since one host may use all of its addresses.
func sourceOf(c *conn) source {
	s := source{limit: c.limit, ip: c.remote.ip}
	if c.remote.size == net6 {
		clear(s.ip[net6/2:])
	}
	return s
}

// share is how many connections a source has.
type share struct {
	n     int
	least *conn // the connection to close first
}

// before reports whether c is closed before other, which belongs to the same source or to one with as many connections.
// Connections without a request are closed first, then the oldest.
func (c *conn) before(other *conn) bool {
	if other == nil || (c.state == reading) != (other.state == reading) {
		return other == nil || c.state == reading
	}
	return c.asked.Before(other.asked)
}

// shed makes room during a flood: it answers one request of the source with the most connections, except hooks. It
// returns false if only hooks have connections.
func (g *guard) shed() bool {
	shares := g.shares
	clear(shares)
	for _, c := range g.all {
		if c.isHook() {
			continue
		}
		s := shares[sourceOf(c)]
		s.n++
		if c.before(s.least) {
			s.least = c
		}
		shares[sourceOf(c)] = s
	}
	var most share
	for _, s := range shares {
		if s.n > most.n || s.n == most.n && s.least.before(most.least) {
			most = s
		}
	}
	switch {
	case most.least == nil:
		return false
	case most.least.state >= closing:
		g.close(most.least)
	default:
		g.answerErrored(most.least)
	}
	return true
}

// reclaimRequests takes back the requests that a dead worker has not answered. Probes, and hooks that the worker had
// not begun, wait for the next worker. A hook that the worker may have called is answered, since it must not be called
// twice, and must not fail because of the agent.
func (g *guard) reclaimRequests() (kept, answered int) {
	var back []*conn
	for _, c := range g.all {
		switch {
		case c.state != assigned:
		case c.begun || c.answered || len(c.out) > 0 || c.attempts >= maxAttempts:
			if c.begun && !c.answered {
				g.log.write("ERROR", "worker ended during a hook, which counts as called", "probe", c.limit.ID)
			}
			c.state = queued // so that answerErrored does not notify the dead worker
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

// answerLast answers a request that no worker will answer. A hook that was not called fails.
func (g *guard) answerLast(c *conn) {
	if c.isHook() && !c.begun {
		g.close(c)
		return
	}
	g.answerErrored(c)
}
