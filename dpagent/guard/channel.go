package guard

import (
	"errors"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// onChannelEvent reads messages of the worker, and sends it the requests that waited for room in the socket. It ignores
// the end of the channel, since the end of the process follows.
func (g *guard) onChannelEvent(events uint32) {
	if g.worker.channel < 0 {
		return
	}
	if events&syscall.EPOLLOUT != 0 {
		g.worker.blocked = false
		g.watchChannel(channelEvents)
	}
	if events&(syscall.EPOLLIN|syscall.EPOLLHUP|syscall.EPOLLERR) != 0 {
		g.readChannel()
	}
	g.dispatch()
}

const channelEvents = syscall.EPOLLIN | epollET

// watchChannel sets the watched events. It watches EPOLLOUT only while the socket has no room: otherwise each message
// that a worker reads would cause an event.
func (g *guard) watchChannel(events uint32) {
	_ = epollControl(g.epoll, syscall.EPOLL_CTL_MOD, g.worker.channel, channelID, events) // cannot fail: watched already
}

// readChannel reads and handles all messages of the worker.
func (g *guard) readChannel() {
	for g.worker.channel >= 0 {
		n, rights, err := g.receive()
		switch {
		case err == syscall.EINTR:
			continue
		case err == syscall.EAGAIN:
			return
		case err != 0 || n == 0:
			g.worker.ready = false
			closeSocket(g.worker.channel)
			g.worker.channel = -1
			return
		}
		if h, payload, ok := wire.Parse(g.buffer[:n]); ok {
			g.onMessage(h, payload, rights)
		}
	}
}

// receive reads one message into the buffer. Only the first worker's messages carry a socket; reading the others
// allocates nothing.
func (g *guard) receive() (n int, rights []byte, err syscall.Errno) {
	if g.serves {
		n, err = read(g.worker.channel, g.buffer)
		return n, nil, err
	}
	var oob [64]byte
	n, have, _, _, failed := syscall.Recvmsg(g.worker.channel, g.buffer, oob[:], syscall.MSG_CMSG_CLOEXEC)
	errors.As(failed, &err)
	return n, oob[:have], err
}

// drainChannel handles the last messages of a worker that has ended.
func (g *guard) drainChannel() {
	g.readChannel()
	if g.worker.channel >= 0 { // another process still has the other end open
		closeSocket(g.worker.channel)
		g.worker.channel = -1
	}
}

func (g *guard) onMessage(h wire.Header, payload, rights []byte) {
	switch h.Kind {
	case wire.Table:
		for !g.serves && len(payload) > 0 { // later workers have the same table
			limit, rest, err := wire.ParseLimit(payload)
			if err != nil {
				g.log.write("ERROR", "worker sent an invalid table", "err", err.Error())
				return
			}
			g.add(limit)
			payload = rest
		}
		return
	case wire.Listen:
		g.onListen(h, payload, rights)
		return
	case wire.Ready:
		g.onReady()
		return
	case wire.Kept:
		g.kept = int(h.ID)
		return
	case wire.Hold:
		g.warns = h.ID == 1
		return
	}
	c := g.all[h.ID]
	if c == nil || c.state != assigned {
		return // the client has disconnected, or has its answer
	}
	switch h.Kind {
	case wire.Begun:
		c.begun = true
	case wire.Unlimited:
		c.unlimited = true
		g.setDeadline(c)
	case wire.Answer:
		g.write(c, payload)
	case wire.End:
		g.finishAnswer(c, payload)
	}
}

// onListen takes over a port, which the first worker has opened.
func (g *guard) onListen(h wire.Header, payload, rights []byte) {
	p, err := wire.ParsePort(h, payload)
	fd, ok := singleFD(rights)
	if err != nil || !ok { // too many open files in this process, which the worker cannot see
		g.log.write("ERROR", "failed to receive the socket of a port")
		g.signalWorker(syscall.SIGKILL)
		return
	}
	_ = syscall.SetNonblock(fd, true) // it already is, since Go made it
	g.ports = append(g.ports, newPort(len(g.ports), fd, p))
}

// onReady starts to accept connections. After a restart of the worker, it starts to send the new worker requests.
func (g *guard) onReady() {
	g.worker.ready = true
	if g.serves {
		g.log.write("INFO", "worker answers again", "pid", g.worker.pid, "starts", g.starts)
		return
	}
	g.serves = true
	g.acceptAgain()
	g.log.write("INFO", "guard listens", "address", g.listening(), "pid", g.worker.pid)
}

func singleFD(rights []byte) (fd int, ok bool) {
	messages, err := syscall.ParseSocketControlMessage(rights)
	if err != nil || len(messages) != 1 {
		return 0, false
	}
	fds, err := syscall.ParseUnixRights(&messages[0])
	if err != nil || len(fds) != 1 {
		return 0, false
	}
	return fds[0], true
}

// send sends a message to the worker. It returns false if the socket has no room for it.
func (g *guard) send(h wire.Header, payload []byte) bool {
	if g.worker.channel < 0 {
		return true // the worker has ended
	}
	message := append(h.Append(g.buffer[:0]), payload...) // the payload may already be in buffer, after the header
	for {
		switch _, err := write(g.worker.channel, message); err {
		case syscall.EINTR:
		case syscall.EAGAIN:
			g.worker.blocked = true
			g.watchChannel(channelEvents | syscall.EPOLLOUT)
			return false
		default: // sent, or the worker has ended
			return true
		}
	}
}

// sendRequest sends a request to the worker. It returns false if the socket has no room for all of it; the rest is sent
// later.
func (g *guard) sendRequest(c *conn) bool {
	h := wire.Header{Kind: wire.Request, Port: uint16(c.port.id - portID), ID: c.id}
	if c.isHook() {
		h.Flags = wire.Hook
	}
	for c.state = assigned; c.sent < len(c.in); {
		payload := g.buffer[wire.HeaderSize:wire.HeaderSize]
		if c.sent == 0 {
			payload = c.remote.append(payload)
		}
		size := min(len(c.in)-c.sent, wire.MaxPayload-len(payload))
		payload = append(payload, c.in[c.sent:c.sent+size]...)
		h.Flags &^= wire.More
		if c.sent+size < len(c.in) {
			h.Flags |= wire.More
		}
		if !g.send(h, payload) {
			return false
		}
		c.sent += size
	}
	c.attempts++
	g.setDeadline(c)
	return true
}
