package guard

import (
	"slices"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

const (
	// maxConns is more than a worker accepts, since the worker can choose better which connections to evict.
	maxConns = 1 << 11
	// maxHeld limits the total size of all requests, in bytes.
	maxHeld = 2 << 20
	// maxOut limits the unsent part of an answer, in bytes.
	maxOut = 64 << 10
	// maxAttempts is how many workers may get the same request, since it may be what kills them.
	maxAttempts = 3
	// reserve is the number of file descriptors kept for purposes other than connections.
	reserve = 32
)

// state of a connection.
type state byte

const (
	reading   state = iota // the head of its request is not complete yet
	queued                 // its request waits for a worker
	assigned               // the worker has its request
	closing                // the rest of the answer is being sent
	lingering              // the whole answer is sent, and the client should close
)

// conn is one connection, with one request and one answer.
type conn struct {
	id       uint32
	fd       int
	port     *port
	state    state
	remote   remote
	asked    time.Time   // when the request arrived; when the connection was accepted, while the request is incomplete
	deadline time.Time   // when the guard answers Errored; zero means never
	attempts int         // number of workers that got the request
	begun    bool        // the request is a hook that may have been called
	answered bool        // a part of the answer was sent
	limit    *wire.Limit // nil if unknown
	in       []byte      // the request
	call     wire.Call   // the request, for gRPC
	sent     int         // bytes of the request that were sent to the worker
	out      []byte      // the part of the answer that is not sent yet
	blocked  bool        // EPOLLOUT is watched
	inQueue  bool        // the connection is in conns.queue

	unlimited bool // set by a worker: the request may take as long as the client waits
}

func (c *conn) isHook() bool { return c.limit != nil && c.limit.Hook }

// conns are all connections.
type conns struct {
	all          map[uint32]*conn
	from         accepted         // client of the last connection that was accepted
	queue        []*conn          // connections that wait for a worker, in order; some may be closed already
	lastID       uint32           // the last ID that was used
	heldBytes    int              // size of all requests
	nextDeadline time.Time        // no later than the earliest deadline
	maxOpen      int              // limit of open connections
	shares       map[source]share // used by shed, kept for reuse
	free         []*conn          // closed connections for reuse: garbage would be most of the guard's memory
}

const (
	// maxFree limits conns.free.
	maxFree = 64
	// requestCap is the initial capacity for a request, in bytes: more than the kubelet sends.
	requestCap = 1 << 10
)

// newConn returns a new or reused connection.
func (cs *conns) newConn() *conn {
	if len(cs.free) == 0 {
		return &conn{in: make([]byte, 0, requestCap)}
	}
	c := cs.free[len(cs.free)-1]
	cs.free = cs.free[:len(cs.free)-1]
	*c = conn{in: c.in[:0]}
	return c
}

// recycle keeps a closed connection for reuse.
func (cs *conns) recycle(c *conn) {
	if len(cs.free) < maxFree && cap(c.in) == requestCap && !c.inQueue {
		cs.free = append(cs.free, c)
	}
}

func (cs *conns) initConns() {
	cs.all, cs.shares = map[uint32]*conn{}, map[source]share{}
	cs.maxOpen = maxConns
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil && limit.Cur < maxConns+reserve {
		cs.maxOpen = max(1, int(limit.Cur)-reserve)
	}
}

// newID returns an unused ID that fits into the data of an epoll event.
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

func (g *guard) admit(p *port, fd int) {
	if len(g.all) >= g.maxOpen {
		g.shed()
	}
	c := g.newConn()
	c.id, c.fd, c.port, c.remote, c.asked = g.newID(), fd, p, g.from.remote(), g.now
	if g.watch(fd, int(c.id), connEvents) != nil {
		closeSocket(fd) // no memory
		return
	}
	g.all[c.id] = c
	g.setDeadline(c)
}

const connEvents = syscall.EPOLLIN | syscall.EPOLLRDHUP | epollET

// epollET is syscall.EPOLLET, which is a negative constant.
const epollET = 1 << 31

// setDeadline sets the deadline after a change of state.
func (g *guard) setDeadline(c *conn) {
	limit, ok := g.timeLimit(c.limit, c.state == assigned)
	c.deadline = time.Time{}
	if ok && !c.unlimited {
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
	// A client that has closed only its own direction counts as gone, also while lingering. The kubelet never does that.
	if events&(syscall.EPOLLRDHUP|syscall.EPOLLHUP|syscall.EPOLLERR) != 0 && g.all[id] != nil && c.state != closing {
		g.onClientGone(c)
	}
}

// read reads until the head of the request is complete, or for gRPC the whole request. It does not read a body: the
// worker gets the part that came with the head.
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
		for g.heldBytes > maxHeld && g.shed() {
		}
		switch {
		case g.all[c.id] == nil: // shed has closed this connection
			return
		case g.requestEnds(c, seen):
			c.asked = g.now.Add(-timeSinceData(c.fd))
			g.enqueue(c)
			return
		case g.all[c.id] == nil:
			return
		case len(c.in) > c.port.MaxHead:
			g.refuse(c)
			return
		case n < len(g.buffer): // edge-triggered: new data causes another event
			return
		}
	}
}

// enqueue puts a request into the queue.
func (g *guard) enqueue(c *conn) {
	c.state = queued
	if !g.exitAt.IsZero() {
		g.answerLast(c)
		return
	}
	g.setDeadline(c)
	if len(g.queue) >= 2*g.maxOpen { // most of them were closed while no worker ran
		g.queue = slices.DeleteFunc(g.queue, func(c *conn) bool { return g.all[c.id] != c })
	}
	g.queue = append(g.queue, c)
	c.inQueue = true
	g.dispatch()
}

// dispatch sends queued requests to the worker.
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

// onClientGone closes a connection whose client has disconnected.
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

// write sends b after the unsent rest of the answer.
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
		g.end(c)
	}
}

// end ends a connection after its answer. A gRPC client still sends HTTP/2 control frames. A reset in response could
// discard the answer, so the guard only closes its own direction and lets the client close first.
func (g *guard) end(c *conn) {
	if !c.port.GRPC {
		g.close(c)
		return
	}
	_ = syscall.Shutdown(c.fd, syscall.SHUT_WR) // fails if the client has already closed
	c.state, c.deadline = lingering, g.now.Add(verdictGrace)
	g.nextDeadline = earlier(g.nextDeadline, c.deadline)
}

// watchWritable watches EPOLLOUT while a part of the answer is not sent.
func (g *guard) watchWritable(c *conn) {
	if c.blocked == (len(c.out) > 0) {
		return
	}
	c.blocked = !c.blocked
	events := uint32(connEvents)
	if c.blocked {
		events |= syscall.EPOLLOUT
	}
	_ = epollControl(g.epoll, syscall.EPOLL_CTL_MOD, c.fd, int(c.id), events) // cannot fail: it is watched
}

// finishAnswer sends the end of an answer, and closes the connection once all of it is sent.
func (g *guard) finishAnswer(c *conn, last []byte) {
	c.state = closing
	g.lastAnswer = g.now
	if c.deadline.IsZero() { // a hook has no deadline before
		c.deadline = g.now.Add(verdictGrace)
		g.nextDeadline = earlier(g.nextDeadline, c.deadline)
	}
	g.write(c, last)
}
