package parent

import (
	"encoding/binary"
	"errors"
	"strconv"
	"syscall"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// onChannelEvent hears the worker, and gives it what waited for room. The end of the channel says no more than the end of the process.
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

// watchChannel asks for room only where there is none: a worker makes some with each message that it reads.
func (g *guard) watchChannel(events uint32) {
	_ = epollControl(g.epoll, syscall.EPOLL_CTL_MOD, g.worker.channel, channelID, events) // it is watched
}

// readChannel reads all that the worker has said.
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

// receive reads one message into the buffer. A socket comes with one of the first worker's alone; for the others there is no garbage.
func (g *guard) receive() (n int, rights []byte, err syscall.Errno) {
	if g.listener >= 0 {
		n, err = read(g.worker.channel, g.buffer)
		return n, nil, err
	}
	var oob [64]byte
	n, have, _, _, failed := syscall.Recvmsg(g.worker.channel, g.buffer, oob[:], syscall.MSG_CMSG_CLOEXEC)
	errors.As(failed, &err)
	return n, oob[:have], err
}

// drainChannel hears what the worker said before it ended.
func (g *guard) drainChannel() {
	g.readChannel()
	if g.worker.channel >= 0 { // somebody else holds its end
		closeSocket(g.worker.channel)
		g.worker.channel = -1
	}
}

func (g *guard) onMessage(h wire.Header, payload, rights []byte) {
	switch h.Kind {
	case wire.Table:
		for g.listener < 0 && len(payload) > 0 { // the table of later workers is the same
			p, rest, err := wire.ParseProbe(payload)
			if err != nil {
				g.log.write("ERROR", "worker sent a bad table", "err", err.Error())
				return
			}
			g.add(p)
			payload = rest
		}
		return
	case wire.Listen:
		g.onListen(payload, rights)
		return
	}
	c := g.all[h.ID]
	if c == nil || c.state != assigned {
		return // the client has gone, or has an answer
	}
	switch h.Kind {
	case wire.Begun:
		c.begun = true
	case wire.Answer:
		g.write(c, payload)
	case wire.End:
		g.finishAnswer(c, payload)
	}
}

// onListen begins to accept, or to give what was accepted to a new worker.
func (g *guard) onListen(payload, rights []byte) {
	g.worker.ready = true
	if g.listener >= 0 || len(payload) < 4 {
		g.log.write("INFO", "worker answers again", "pid", strconv.Itoa(g.worker.pid), "starts", strconv.Itoa(g.starts))
		return
	}
	fd, ok := singleFD(rights)
	if !ok { // there was no room for it here, and the worker believes that it listens
		g.log.write("ERROR", "guard has not got the socket of the port")
		g.signalWorker(syscall.SIGKILL)
		return
	}
	g.listener = fd
	g.maxHead = int(binary.LittleEndian.Uint32(payload))
	g.address = string(payload[4:])
	_ = syscall.SetNonblock(g.listener, true) // as Go made it
	g.acceptAgain()
	g.log.write("INFO", "guard listens", "address", g.address, "pid", strconv.Itoa(g.worker.pid))
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

// send says something to the worker, and whether there was room for it.
func (g *guard) send(h wire.Header, payload []byte) bool {
	if g.worker.channel < 0 {
		return true // it does not matter any more
	}
	message := append(h.Append(g.buffer[:0]), payload...) // the payload may be in place already
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

// sendRequest gives a request to the worker. It says false if there is no room: the rest of it then goes later.
func (g *guard) sendRequest(c *conn) bool {
	h := wire.Header{Kind: wire.Request, ID: c.id}
	if c.probe != nil && c.probe.hook {
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
