// Package parent is a guard: the small process that `sonde-dp` starts as. It owns the virtual port, its child is the agent
// (the worker), and an agent that has died, hangs or is being replaced does not look like an application that fails: what
// it left without an answer waits for the next worker, and is answered Errored when the time is up.
//
// It keeps to packages that need little memory, and runs before the others are initialised: it exists once per pod.
package parent

import (
	"errors"
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// Options of a guard.
type Options struct {
	// Args of the worker, with the name of the program.
	Args []string
	// Env of the worker, as this process has it. The guard adds what tells the worker its part.
	Env []string
	// Files of the worker: its stdin, stdout and stderr. The guard logs to the last.
	Files [3]*os.File
}

// What epoll tells besides connections, which have ids from firstID on.
const (
	listenerID = iota
	channelID
	wakeID
	firstID
)

const (
	// endTime is what a worker has to end after the second signal; it needs 2 s to stop Envoy.
	endTime = 5 * time.Second
	// maxEvents are those taken at a time.
	maxEvents = 64
)

// guard is one goroutine around epoll, but for the one that hears signals.
type guard struct {
	o   Options
	log logger

	epoll         int
	poll          syscall.RawConn // of epoll itself, which Go's own poller watches
	pollFile      *os.File
	listener      int // -1 until the first worker can answer
	address       string
	acceptAgainAt time.Time // of accepting, after an error

	worker  worker
	backoff backoff
	starts  int

	signals     chan os.Signal
	wakeFD      [2]int // a pipe
	stopSignals int    // signals that have come
	killAt      time.Time

	forks  chan fork
	forked chan forked

	table
	conns
	buffer        []byte
	epollEvents   [maxEvents]syscall.EpollEvent
	eventCount    int                // of those
	epollErr      syscall.Errno      // instead
	waitForEvents func(uintptr) bool // fills them in, and says whether there are any

	now      time.Time
	done     bool
	exitCode int
}

// Run starts the worker and is its guard until the end. It returns the exit code of the process. It is to be called from the
// main thread, which lives as long as the process: the kernel ends the worker with the thread that started it.
func Run(o Options) int {
	runtime.LockOSThread()
	g := &guard{
		o: o, log: logger{o.Files[2]}, listener: -1, now: time.Now(), signals: make(chan os.Signal, 16),
		forks: make(chan fork, 1), forked: make(chan forked, 1),
		buffer: make([]byte, wire.MaxMessage+maxAddress),
	}
	g.initConns()
	go g.loop() // a goroutine that is bound to a thread would make Go's scheduler switch threads for each event
	for f := range g.forks {
		g.forked <- f.exec()
		g.wake()
	}
	return g.exitCode
}

func (g *guard) loop() {
	defer close(g.forks)
	if err := g.setUp(); err != nil {
		g.log.write("ERROR", "guard cannot start", "err", err.Error())
		g.exitCode = 1
		return
	}
	for g.restartWorker(); !g.done; {
		g.runOnce()
	}
	g.answerAll()
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
	// What the worker leaves behind when it dies is this process's to wait for: its Envoy still has its ports for a moment.
	if _, _, e := syscall.RawSyscall(syscall.SYS_PRCTL, prSetChildSubreaper, 1, 0); e != 0 {
		return os.NewSyscallError("prctl", e)
	}
	heard := make(chan os.Signal, 16)
	signal.Notify(heard, syscall.SIGTERM, syscall.SIGINT, syscall.SIGCHLD)
	go func() {
		for s := range heard {
			select {
			case g.signals <- s:
			default: // so many wait that this one adds nothing
			}
			g.wake()
		}
	}()
	return g.watch(g.wakeFD[0], wakeID, syscall.EPOLLIN)
}

// wake makes the loop look at its channels.
func (g *guard) wake() {
	_, _ = syscall.Write(g.wakeFD[1], []byte{0}) // a full pipe wakes it too
}

const prSetChildSubreaper = 36

// runOnce waits for something to happen, and acts. It waits in Go's own poller, which watches this epoll: a system call that blocks costs
// Go several others.
func (g *guard) runOnce() {
	next := g.nextDeadline
	for _, t := range []time.Time{g.worker.startAt, g.killAt, g.acceptAgainAt} {
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
		switch e.Fd {
		case listenerID:
			g.accept()
		case channelID:
			g.onChannelEvent(e.Events)
		case wakeID:
			g.onWake()
		default:
			g.onConnEvent(uint32(e.Fd), e.Events)
		}
	}
	g.runTimers()
}

func (g *guard) fail(err error) {
	g.log.write("ERROR", "guard cannot wait", "err", err.Error())
	g.exit(1)
}

// earlier returns the earlier of two times, of which zero is never.
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
		g.log.write("ERROR", "worker does not end, it is killed")
		g.signalWorker(syscall.SIGKILL)
	}
}

// exit makes Run return.
func (g *guard) exit(code int) { g.done, g.exitCode = true, code }

func (g *guard) watch(fd, id int, what uint32) error {
	if err := epollControl(g.epoll, syscall.EPOLL_CTL_ADD, fd, id, what); err != 0 {
		return os.NewSyscallError("epoll_ctl", err)
	}
	return nil
}

// onWake hears of a worker that was started, of signals, and of children that have ended.
func (g *guard) onWake() {
	var b [64]byte
	_, _ = syscall.Read(g.wakeFD[0], b[:]) // what it says is in the channels
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

// onSignal passes a signal on to the worker, the second one with a limit.
func (g *guard) onSignal(s os.Signal) {
	g.stopSignals++
	if g.worker.pid == 0 {
		g.exit(0) // nothing runs that could drain
		return
	}
	if g.stopSignals > 1 && g.killAt.IsZero() {
		g.killAt = g.now.Add(endTime)
	}
	if number, ok := s.(syscall.Signal); ok {
		g.signalWorker(number)
	}
}
