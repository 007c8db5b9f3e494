// Package guard is the small process that owns the ports for probes. Its child, the worker, is the agent; package
// worker is the worker's side. So a dead, hanging or restarting agent does not look like a failing application:
// unanswered requests wait for the next worker, and the guard answers them Errored when their time is up.
//
// Package guard only imports packages that need little memory, and runs before all others are initialised, since a
// guard runs in each pod.
package guard

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/internal/shutdown"
)

// IDs of epoll events; ports have IDs from portID on, and connections from firstID on.
const (
	channelID = iota
	wakeID
	portID  // ID of the first port
	firstID = portID + wire.MaxPorts
)

const (
	// farewell is how long the guard answers Errored after the last worker has ended, if there was a request just before.
	// After Errored the kubelet retries within milliseconds, and a refused connection would count as a failure of the
	// application.
	farewell = 200 * time.Millisecond
	// endTime is how long a worker may take to end after the second signal. Stopping Envoy may take 2 s of it.
	endTime = 5 * time.Second
	// maxEvents is the maximum number of epoll events that are read at once.
	maxEvents = 64
)

// guard is an event loop around epoll, in one goroutine. Another goroutine receives signals.
type guard struct {
	log logger

	epoll         int
	poll          syscall.RawConn // epoll itself, which Go's own poller watches
	pollFile      *os.File
	ports         []*port
	serves        bool      // the first worker can answer
	warns         bool      // liveness probes are answered with a warning in place of Errored
	acceptAgainAt time.Time // end of the pause after an error of accept, else zero

	worker  worker
	kept    int // the PID of a child that outlives workers; 0 without one
	backoff backoff
	starts  int

	signals     chan os.Signal
	wakeFD      [2]int // a pipe
	stopSignals int    // number of termination signals received, see onSignal
	killAt      time.Time
	lastAnswer  time.Time
	exitAt      time.Time // end of the farewell, zero before

	forks  chan fork
	forked chan forked

	table
	conns
	buffer        []byte
	epollEvents   [maxEvents]syscall.EpollEvent
	eventCount    int                // number of epollEvents
	epollErr      syscall.Errno      // error of epoll_wait
	waitForEvents func(uintptr) bool // reads epollEvents, and returns whether there are any

	now      time.Time
	done     bool
	exitCode int
}

// run runs the guard, and returns the exit code of the process. It must be called from the main thread, which lives as
// long as the process: the kernel kills the worker when the thread that started it ends.
func run() int {
	runtime.LockOSThread()
	g := &guard{
		log: newLogger(), now: time.Now(), signals: make(chan os.Signal, 16),
		forks: make(chan fork, 1), forked: make(chan forked, 1),
		table: table{limits: map[string]*wire.Limit{alive.ID: &alive}}, buffer: make([]byte, wire.MaxMessage+maxAddress),
	}
	g.initConns()
	go g.loop() // not in this goroutine, which is locked to a thread: each event would cost a switch of threads
	for f := range g.forks {
		g.forked <- f.exec()
		g.wake()
	}
	return g.exitCode
}

func (g *guard) loop() {
	defer close(g.forks)
	if err := g.setUp(); err != nil {
		g.log.write("ERROR", "failed to start guard", "err", err.Error())
		g.exitCode = 1
		return
	}
	for g.restartWorker(); !g.done; {
		g.runOnce()
	}
	for _, c := range g.all {
		g.answerLast(c)
	}
}

func (g *guard) setUp() error {
	var err error
	if g.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.SetNonblock(g.epoll, true); err != nil {
		return os.NewSyscallError("fcntl", err)
	}
	g.pollFile = os.NewFile(uintptr(g.epoll), "epoll")
	if g.poll, err = g.pollFile.SyscallConn(); err != nil {
		return err
	}
	if err := syscall.Pipe2(g.wakeFD[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return os.NewSyscallError("pipe2", err)
	}
	g.waitForEvents = func(epoll uintptr) bool {
		g.eventCount, g.epollErr = epollWait(int(epoll), g.epollEvents[:])
		return g.eventCount > 0 || g.epollErr != 0
	}
	// Become the parent of the processes that a dead worker leaves behind, to wait for their end: Envoy keeps its ports
	// until it has ended.
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); e != 0 {
		return os.NewSyscallError("prctl", e)
	}
	heard := make(chan os.Signal, 16)
	signal.Notify(heard, append(shutdown.Signals(), syscall.SIGCHLD)...)
	go func() {
		for s := range heard {
			select {
			case g.signals <- s:
			default: // signals already holds enough signals
			}
			g.wake()
		}
	}()
	return g.watch(g.wakeFD[0], wakeID, syscall.EPOLLIN)
}

// wake makes the event loop check its Go channels.
func (g *guard) wake() {
	_, _ = syscall.Write(g.wakeFD[1], []byte{0}) // if the pipe is full, the loop will wake up anyway
}

const prSetChildSubreaper = 36

// runOnce waits for events and handles them. It waits in Go's own poller, which watches the epoll descriptor: a
// blocking system call would make Go's scheduler do several others.
func (g *guard) runOnce() {
	next := g.nextDeadline
	for _, t := range []time.Time{g.worker.startAt, g.killAt, g.acceptAgainAt, g.exitAt} {
		next = earlier(next, t)
	}
	if err := g.pollFile.SetReadDeadline(next); err != nil {
		g.fail(err)
		return
	}
	g.eventCount, g.epollErr = 0, 0
	if err := g.poll.Read(g.waitForEvents); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		g.fail(err)
		return
	}
	if g.epollErr != 0 && g.epollErr != syscall.EINTR {
		g.fail(g.epollErr)
		return
	}
	g.now = time.Now()
	for _, e := range g.epollEvents[:max(g.eventCount, 0)] {
		switch {
		case e.Fd == channelID:
			g.onChannelEvent(e.Events)
		case e.Fd == wakeID:
			g.onWake()
		case e.Fd < firstID:
			g.accept(g.ports[e.Fd-portID])
		default:
			g.onConnEvent(uint32(e.Fd), e.Events)
		}
	}
	g.runTimers()
}

func (g *guard) fail(err error) {
	g.log.write("ERROR", "epoll failed", "err", err.Error())
	g.exit(1)
}

// earlier returns the earlier of two times; zero means never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (g *guard) due(t time.Time) bool { return !t.IsZero() && !g.now.Before(t) }

func (g *guard) runTimers() {
	if g.due(g.nextDeadline) {
		g.expireConns()
	}
	if g.due(g.acceptAgainAt) {
		g.acceptAgainAt = time.Time{}
		g.acceptAgain()
	}
	if g.due(g.worker.startAt) {
		g.restartWorker()
	}
	if g.due(g.killAt) {
		g.killAt = time.Time{}
		g.log.write("ERROR", "worker does not end, killing it")
		g.signalWorker(syscall.SIGKILL)
	}
	if g.due(g.exitAt) {
		g.exit(g.exitCode)
	}
}

// exit makes run return with that exit code.
func (g *guard) exit(code int) { g.done, g.exitCode = true, code }

// leave exits, after a farewell if clients may ask again. The worker has ended.
func (g *guard) leave(code int) {
	if g.kept != 0 {
		_ = syscall.Kill(g.kept, syscall.SIGKILL) // may have ended; its PID is not reused before reap
	}
	switch {
	case len(g.all) == 0 && g.now.Sub(g.lastAnswer) > farewell:
		g.exit(code)
	case g.exitAt.IsZero():
		g.exitCode, g.exitAt = code, g.now.Add(farewell)
		g.worker.startAt = time.Time{}
		for _, c := range g.all {
			if c.state == queued || c.state == assigned {
				g.answerLast(c)
			}
		}
	}
}

func (g *guard) watch(fd, id int, what uint32) error {
	if err := epollControl(g.epoll, syscall.EPOLL_CTL_ADD, fd, id, what); err != 0 {
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// onWake handles a newly started worker, signals, and children that have ended.
func (g *guard) onWake() {
	var b [64]byte
	_, _ = syscall.Read(g.wakeFD[0], b[:]) // the bytes mean nothing
	select {
	case f := <-g.forked:
		g.onStarted(f)
	default:
	}
	for len(g.signals) > 0 && !g.done {
		if s := <-g.signals; s != syscall.SIGCHLD {
			g.onSignal(s)
		}
	}
	g.reap()
}

// onSignal forwards a signal to the worker. After the second signal, the guard kills the worker if it does not end in
// time. SIGHUP counts only as the first signal, since shell and kernel may each send one when a terminal closes.
func (g *guard) onSignal(s os.Signal) {
	if s == syscall.SIGHUP && g.stopSignals > 0 {
		return
	}
	g.stopSignals++
	if g.worker.pid == 0 {
		g.leave(0)
		return
	}
	if g.stopSignals > 1 && g.killAt.IsZero() {
		g.killAt = g.now.Add(endTime)
	}
	if number, ok := s.(syscall.Signal); ok {
		g.signalWorker(number)
	}
}
