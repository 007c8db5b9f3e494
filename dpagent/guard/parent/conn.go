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
	// maxTries is how many workers a request may meet: what kills each of them is not given to all.
	maxTries = 3
	// reserve is the part of the limit of file descriptors that is not for connections.
	reserve = 32
)

type state byte

const (
	reading state = iota // its request is not whole yet
	waiting              // for a worker
	given                // to the worker
	closing              // what is left of the answer is sent
)

// conn is one connection, with one request and one answer.
type conn struct {
	id       uint32
	fd       int
	state    state
	remote   remote
	asked    time.Time // it was accepted, or its request came, which may have been before
	deadline time.Time // then it is answered Errored; zero for never
	tries    int       // workers that had it
	begun    bool      // a hook that may have been called
	answered bool      // something was sent
	probe    *probe    // nil while it is not known
	in       []byte    // the request
	sent     int       // of it, to the worker
	out      []byte    // of the answer, not sent yet
	blocked  bool      // the socket is watched for room
	lined    bool      // it stands in line
}

// conns are all connections.
type conns struct {
	all  map[uint32]*conn
	from accepted  // whom the last one came from
	line []*conn   // those waiting, in order; others among them have gone
	last uint32    // the id given last
	held int       // bytes of requests
	next time.Time // no deadline is earlier
	most int       // connections at a time
	free []*conn   // closed ones, to be used again: garbage would be most of the memory of a guard
}

const (
	maxFree = 64
	// usualIn is more than the kubelet sends, in bytes.
	usualIn = 1 << 10
)

// take returns a connection to be filled in.
func (cs *conns) take() *conn {
	if len(cs.free) == 0 {
		return &conn{in: make([]byte, 0, usualIn)}
	}
	c := cs.free[len(cs.free)-1]
	cs.free = cs.free[:len(cs.free)-1]
	*c = conn{in: c.in[:0]}
	return c
}

// giveBack keeps a connection that is closed.
func (cs *conns) giveBack(c *conn) {
	if len(cs.free) < maxFree && cap(c.in) == usualIn && !c.lined {
		cs.free = append(cs.free, c)
	}
}

func (cs *conns) init() {
	cs.all = map[uint32]*conn{}
	cs.most = maxConns
	var limit syscall.Rlimit
	if syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit) == nil && limit.Cur < maxConns+reserve {
		cs.most = max(1, int(limit.Cur)-reserve)
	}
}

// newID returns one that epoll can carry and nobody has.
func (cs *conns) newID() uint32 {
	for {
		cs.last++
		if cs.last < firstID || cs.last > 1<<31-1 {
			cs.last = firstID
		}
		if cs.all[cs.last] == nil {
			return cs.last
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
			g.pause = g.now.Add(acceptRetry)
			_ = epollControl(g.epoll, syscall.EPOLL_CTL_DEL, g.listener, 0, 0) // it is there
			return
		default: // there is none, or it has gone again
			return
		}
	}
}

func (g *guard) admit(fd int) {
	if len(g.all) >= g.most {
		g.shed()
	}
	c := g.take()
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

func (g *guard) listenAgain() {
	if err := g.watch(g.listener, listenerID, syscall.EPOLLIN); err != nil {
		g.pause = g.now.Add(acceptRetry)
	}
}

// setDeadline follows a change of the state.
func (g *guard) setDeadline(c *conn) {
	limit, ok := g.limit(c.probe, c.state == given)
	c.deadline = time.Time{}
	if ok {
		c.deadline = c.asked.Add(limit)
		g.next = earlier(g.next, c.deadline)
	}
}

func (g *guard) connEvent(id uint32, events uint32) {
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
		g.leave(c)
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
				g.leave(c)
			}
			return
		}
		seen := len(c.in)
		c.in = append(c.in, g.buffer[:n]...)
		g.held += n
		for g.held > maxHeld {
			g.shed()
		}
		switch {
		case g.all[c.id] == nil: // it was shed itself
			return
		case headEnds(c.in, seen):
			c.probe = g.probes[string(probeID(c.in))]
			c.asked = g.now.Add(-sinceData(c.fd))
			g.await(c)
			return
		case len(c.in) > g.maxHead:
			g.tooLong(c)
			return
		case n < len(g.buffer): // edge-triggered: more makes an event
			return
		}
	}
}

// await puts a request into the line.
func (g *guard) await(c *conn) {
	c.state = waiting
	g.setDeadline(c)
	if len(g.line) >= 2*g.most { // most of them have gone while no worker came
		g.line = slices.DeleteFunc(g.line, func(c *conn) bool { return g.all[c.id] != c })
	}
	g.line = append(g.line, c)
	c.lined = true
	g.serve()
}

// serve gives the worker what waits.
func (g *guard) serve() {
	served := 0
	for _, c := range g.line {
		if !g.worker.ready || g.worker.blocked || g.all[c.id] == c && !g.give(c) {
			break
		}
		c.lined = false
		served++
	}
	g.line = slices.Delete(g.line, 0, served)
}

// leave ends a connection whose client has gone.
func (g *guard) leave(c *conn) {
	if c.state == given {
		g.tell(wire.Header{Kind: wire.Gone, ID: c.id}, nil)
	}
	g.close(c)
}

func (g *guard) close(c *conn) {
	closeSocket(c.fd)
	delete(g.all, c.id)
	g.held -= len(c.in)
	c.state = closing
	g.giveBack(c)
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
			g.leave(c)
			return
		}
		c.answered = true
		b = b[n:]
	}
	g.watchRoom(c)
	if len(c.out) == 0 && c.state == closing {
		g.close(c)
	}
}

// watchRoom asks for an event when there is room for what is left of an answer.
func (g *guard) watchRoom(c *conn) {
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

// finish sends the end of an answer, and closes the connection when all of it is sent.
func (g *guard) finish(c *conn, last []byte) {
	c.state = closing
	if c.deadline.IsZero() { // a hook has no other
		c.deadline = g.now.Add(lateness)
		g.next = earlier(g.next, c.deadline)
	}
	g.write(c, last)
}
