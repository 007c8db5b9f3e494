package parent

import (
	"slices"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

const (
	// maxConns is more than a worker takes, which knows better whom to turn away.
	maxConns = 1 << 11
	// maxHeld bounds what is kept of all requests, in bytes.
	maxHeld = 4 << 20
	// maxOut bounds what is kept of an answer that the client does not read, in bytes.
	maxOut = 64 << 10
	// maxAttempts is how many workers a request may meet: what kills each of them is not given to all.
	maxAttempts = 3
	// reserve is the part of the limit of file descriptors that is not for connections.
	reserve = 32
)

type state byte

const (
	reading  state = iota // its request is not whole yet
	queued                // for a worker
	assigned              // to the worker
	closing               // what is left of the answer is sent
)

// conn is one connection, with one request and one answer.
type conn struct {
	id       uint32
	fd       int
	state    state
	remote   remote
	asked    time.Time // it was accepted, or its request came, which may have been before
	deadline time.Time // then it is answered Errored; zero for never
	attempts int       // workers that had it
	begun    bool      // a hook that may have been called
	answered bool      // something was sent
	probe    *probe    // nil while it is not known
	in       []byte    // the request
	sent     int       // of it, to the worker
	out      []byte    // of the answer, not sent yet
	blocked  bool      // the socket is watched for room
	inQueue  bool      // it stands in line
}

// conns are all connections.
type conns struct {
	all          map[uint32]*conn
	from         accepted  // whom the last one came from
	queue        []*conn   // those waiting, in order; others among them have gone
	lastID       uint32    // the id given last
	heldBytes    int       // bytes of requests
	nextDeadline time.Time // no deadline is earlier
	maxOpen      int       // connections at a time
	free         []*conn   // closed ones, to be used again: garbage would be most of the memory of a guard
}

const (
	maxFree = 64
	// requestCap is more than the kubelet sends, in bytes.
	requestCap = 1 << 10
)

// newConn returns a connection to be filled in.
func (cs *conns) newConn() *conn {
	if len(cs.free) == 0 {
		return &conn{in: make([]byte, 0, requestCap)}
	}
	c := cs.free[len(cs.free)-1]
	cs.free = cs.free[:len(cs.free)-1]
	*c = conn{in: c.in[:0]}
	return c
}

// recycle keeps a connection that is closed.
func (cs *conns) recycle(c *conn) {
	if len(cs.free) < maxFree && cap(c.in) == requestCap && !c.inQueue {
		cs.free = append(cs.free, c)
	}
}

func (cs *conns) initConns() {
	cs.all = map[uint32]*conn{}
	cs.maxOpen = maxConns
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil && limit.Cur < maxConns+reserve {
		cs.maxOpen = max(1, int(limit.Cur)-reserve)
	}
}

// newID returns one that epoll can carry and nobody has.
func (cs *conns) newID() uint32 {
	for {
		cs.lastID++
		if cs.lastID < firstID || cs.lastID > 1<<31-1 {
			cs.lastID = firstID
		}
		if cs.all[cs.lastID] == nil {
			return cs.lastID
		}
	}
}

// acceptAtOnce connections are accepted before others are looked at.
const acceptAtOnce = 16

// acceptRetry is the pause after an error that leaves the connection in the queue: the kernel has no memory or no files.
const acceptRetry = 50 * time.Millisecond

// accept takes some connections: in a flood the kubelet's waits behind others.
func (g *guard) accept() {
	for range acceptAtOnce {
		fd, err := g.from.accept(g.listener)
		switch err {
		case 0:
			g.admit(fd)
		case syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM, syscall.ENOBUFS:
			g.shed()
			g.acceptAgainAt = g.now.Add(acceptRetry)
			_ = epollControl(g.epoll, syscall.EPOLL_CTL_DEL, g.listener, 0, 0) // it is there
			return
		default: // there is none, or it has gone again
			return
		}
	}
}

func (g *guard) admit(fd int) {
	if len(g.all) >= g.maxOpen {
		g.shed()
	}
	c := g.newConn()
	c.id, c.fd, c.remote, c.asked = g.newID(), fd, g.from.remote(), g.now
	if g.watch(fd, int(c.id), connEvents) != nil {
		closeSocket(fd) // the kernel has no memory
		return
	}
	g.all[c.id] = c
	g.setDeadline(c)
}

const connEvents = syscall.EPOLLIN | syscall.EPOLLRDHUP | epollET

// epollET is syscall.EPOLLET, which is negative there.
const epollET = 1 << 31

func (g *guard) acceptAgain() {
	if err := g.watch(g.listener, listenerID, syscall.EPOLLIN); err != nil {
		g.acceptAgainAt = g.now.Add(acceptRetry)
	}
}

// setDeadline follows a change of the state.
func (g *guard) setDeadline(c *conn) {
	limit, ok := g.timeLimit(c.probe, c.state == assigned)
	c.deadline = time.Time{}
	if ok {
		c.deadline = c.asked.Add(limit)
		g.nextDeadline = earlier(g.nextDeadline, c.deadline)
	}
}

func (g *guard) onConnEvent(id uint32, events uint32) {
	c := g.all[id]
	if c == nil {
		return
	}
	if events&syscall.EPOLLOUT != 0 {
		g.write(c, nil)
	}
	if events&syscall.EPOLLIN != 0 && c.state == reading {
		g.read(c)
	}
	// A half-closed connection counts as gone: the kubelet never makes one.
	if events&(syscall.EPOLLRDHUP|syscall.EPOLLHUP|syscall.EPOLLERR) != 0 && g.all[id] != nil && c.state != closing {
		g.onClientGone(c)
	}
}

// read reads what there is, until the request is whole. A body is not read: the worker gets what came with the head.
func (g *guard) read(c *conn) {
	for {
		n, err := read(c.fd, g.buffer)
		if err == syscall.EINTR {
			continue
		}
		if n <= 0 {
			if err != syscall.EAGAIN {
				g.onClientGone(c)
			}
			return
		}
		seen := len(c.in)
		c.in = append(c.in, g.buffer[:n]...)
		g.heldBytes += n
		for g.heldBytes > maxHeld {
			g.shed()
		}
		switch {
		case g.all[c.id] == nil: // it was shed itself
			return
		case headEnds(c.in, seen):
			c.probe = g.probes[string(probeID(c.in))]
			c.asked = g.now.Add(-timeSinceData(c.fd))
			g.enqueue(c)
			return
		case len(c.in) > g.maxHead:
			g.answerTooLong(c)
			return
		case n < len(g.buffer): // edge-triggered: more makes an event
			return
		}
	}
}

// enqueue puts a request into the line.
func (g *guard) enqueue(c *conn) {
	c.state = queued
	g.setDeadline(c)
	if len(g.queue) >= 2*g.maxOpen { // most of them have gone while no worker came
		g.queue = slices.DeleteFunc(g.queue, func(c *conn) bool { return g.all[c.id] != c })
	}
	g.queue = append(g.queue, c)
	c.inQueue = true
	g.dispatch()
}

// dispatch gives the worker what waits.
func (g *guard) dispatch() {
	served := 0
	for _, c := range g.queue {
		if !g.worker.ready || g.worker.blocked || g.all[c.id] == c && !g.sendRequest(c) {
			break
		}
		c.inQueue = false
		served++
	}
	g.queue = slices.Delete(g.queue, 0, served)
}

// onClientGone ends a connection whose client has gone.
func (g *guard) onClientGone(c *conn) {
	if c.state == assigned {
		g.send(wire.Header{Kind: wire.Gone, ID: c.id}, nil)
	}
	g.close(c)
}

func (g *guard) close(c *conn) {
	closeSocket(c.fd)
	delete(g.all, c.id)
	g.heldBytes -= len(c.in)
	c.state = closing
	g.recycle(c)
}

// write sends an answer, or what is left of it.
func (g *guard) write(c *conn, b []byte) {
	if len(c.out) > 0 {
		b = append(c.out, b...)
		c.out = nil
	}
	for len(b) > 0 {
		n, err := write(c.fd, b)
		if err == syscall.EINTR {
			continue
		}
		if err == syscall.EAGAIN && len(b) <= maxOut {
			c.out = append([]byte(nil), b...)
			break
		}
		if err != 0 {
			g.onClientGone(c)
			return
		}
		c.answered = true
		b = b[n:]
	}
	g.watchWritable(c)
	if len(c.out) == 0 && c.state == closing {
		g.close(c)
	}
}

// watchWritable asks for an event when there is room for what is left of an answer.
func (g *guard) watchWritable(c *conn) {
	if c.blocked == (len(c.out) > 0) {
		return
	}
	c.blocked = !c.blocked
	events := uint32(connEvents)
	if c.blocked {
		events |= syscall.EPOLLOUT
	}
	_ = epollControl(g.epoll, syscall.EPOLL_CTL_MOD, c.fd, int(c.id), events) // it is watched
}

// finishAnswer sends the end of an answer, and closes the connection when all of it is sent.
func (g *guard) finishAnswer(c *conn, last []byte) {
	c.state = closing
	if c.deadline.IsZero() { // a hook has no other
		c.deadline = g.now.Add(verdictGrace)
		g.nextDeadline = earlier(g.nextDeadline, c.deadline)
	}
	g.write(c, last)
}
