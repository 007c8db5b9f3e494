// Package parent is a guard: the small process that `sonde-dp` starts as. It owns the virtual port, its child is the agent
// (the worker), and an agent that has died, hangs or is being replaced does not look like an application that fails: what
// it left without an answer waits for the next worker, and is answered Errored when the time is up.
//
// It keeps to packages that need little memory, and runs before the others are initialised: it exists once per pod.
package parent

import (
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
	signalsID
	firstID
)

const (
	// endTime is what a worker has to end after the second signal; it needs 2 s to stop Envoy.
	endTime = 5 * time.Second
	// events are those taken at a time.
	events = 64
)

// guard is one goroutine around epoll, but for the one that hears signals.
type guard struct {
	o   Options
	log logger

	epoll    int
	listener int // -1 until the first worker can answer
	address  string
	pause    time.Time // of accepting, after an error

	worker  worker
	backoff backoff
	starts  int

	signals  chan os.Signal
	signalFD [2]int // a pipe that wakes the loop
	ending   int    // signals that have come
	killAt   time.Time

	table
	conns
	buffer []byte

	now  time.Time
	done bool
	code int
}

// Run starts the worker and is its guard until the end. It returns the exit code of the process. It is to be called from the
// thread that lives as long as the process: the worker dies with it.
func Run(o Options) int {
	runtime.LockOSThread()
	g := &guard{
		o: o, log: logger{o.Files[2]}, listener: -1, now: time.Now(), signals: make(chan os.Signal, 16),
		buffer: make([]byte, wire.MaxMessage+maxAddress),
	}
	g.init()
	if err := g.open(); err != nil {
		g.log.write("ERROR", "guard cannot start", "err", err.Error())
		return 1
	}
	if err := g.start(); err != nil {
		g.log.write("ERROR", "worker cannot start", "err", err.Error())
		return 1
	}
	for !g.done {
		g.turn()
	}
	g.answerAll()
	return g.code
}

func (g *guard) open() error {
	var err error
	if g.epoll, err = syscall.EpollCreate1(syscall.EPOLL_CLOEXEC); err != nil {
		return os.NewSyscallError("epoll_create1", err)
	}
	if err := syscall.Pipe2(g.signalFD[:], syscall.O_CLOEXEC|syscall.O_NONBLOCK); err != nil {
		return os.NewSyscallError("pipe2", err)
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
			_, _ = syscall.Write(g.signalFD[1], []byte{0}) // a full pipe wakes the loop too
		}
	}()
	return g.watch(g.signalFD[0], signalsID, syscall.EPOLLIN)
}

const prSetChildSubreaper = 36

// turn waits for something to happen, and acts.
func (g *guard) turn() {
	var happened [events]syscall.EpollEvent
	n, err := syscall.EpollWait(g.epoll, happened[:], g.patience())
	if err != nil && err != syscall.EINTR {
		g.log.write("ERROR", "guard cannot wait", "err", err.Error())
		g.end(1)
		return
	}
	g.now = time.Now()
	for _, e := range happened[:max(n, 0)] {
		switch e.Fd {
		case listenerID:
			g.accept()
		case channelID:
			g.channelEvent(e.Events)
		case signalsID:
			g.hearSignals()
		default:
			g.connEvent(uint32(e.Fd), e.Events)
		}
	}
	g.onTime()
}

// patience is how long the loop may wait, in ms.
func (g *guard) patience() int {
	next := g.next
	for _, t := range []time.Time{g.worker.startAt, g.killAt, g.pause} {
		next = earlier(next, t)
	}
	if next.IsZero() {
		return -1
	}
	return int(max(0, time.Until(next)+time.Millisecond-1) / time.Millisecond)
}

// earlier returns the earlier of two times, of which zero is never.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

func (g *guard) due(t time.Time) bool { return !t.IsZero() && !g.now.Before(t) }

func (g *guard) onTime() {
	if g.due(g.next) {
		g.expire()
	}
	if g.due(g.pause) {
		g.pause = time.Time{}
		g.listenAgain()
	}
	if g.due(g.worker.startAt) {
		g.startAgain()
	}
	if g.due(g.killAt) {
		g.killAt = time.Time{}
		g.log.write("ERROR", "worker does not end, it is killed")
		g.signal(syscall.SIGKILL)
	}
}

// end makes Run return.
func (g *guard) end(code int) { g.done, g.code = true, code }

func (g *guard) watch(fd, id int, what uint32) error {
	return os.NewSyscallError("epoll_ctl", syscall.EpollCtl(g.epoll, syscall.EPOLL_CTL_ADD, fd, &syscall.EpollEvent{Events: what, Fd: int32(id)}))
}

// hearSignals passes signals on to the worker, the second with a limit, and waits for children that have ended.
func (g *guard) hearSignals() {
	var b [64]byte
	_, _ = syscall.Read(g.signalFD[0], b[:]) // what it says is in the channel
	for {
		select {
		case s := <-g.signals:
			if s == syscall.SIGCHLD {
				continue
			}
			g.ending++
			if g.worker.pid == 0 {
				g.end(0) // nothing runs that could drain
				return
			}
			if g.ending > 1 && g.killAt.IsZero() {
				g.killAt = g.now.Add(endTime)
			}
			g.signal(s.(syscall.Signal))
		default:
			g.reap()
			return
		}
	}
}
