package guard

import (
	"os"
	"strconv"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

const (
	minDelay   = 100 * time.Millisecond
	maxDelay   = 10 * time.Second
	delayShare = 30 // the delay is the time since the first crash, divided by this
	// stableAfter is how long a worker has to run before its next restart has no delay again.
	stableAfter = 10 * time.Second
	// orphanTime is how long a restart waits for the end of the processes that the last worker left behind. Envoy takes
	// about 10 ms.
	orphanTime = 2 * time.Second
	orphanPoll = 10 * time.Millisecond
)

// worker is the process that answers requests.
type worker struct {
	pid     int // 0 if no worker runs
	channel int // the guard's end of the socket, -1 if closed
	ready   bool
	blocked bool // the socket has no room
	started time.Time

	starting     bool      // the worker is being forked: do not reap children before its PID is known
	startAt      time.Time // when to start the next worker; zero if none is to be started
	orphansUntil time.Time // deadline of the wait for processes that the last worker left behind
}

// backoff computes restart delays, which grow with the time since the first crash. For the first half minute they are
// shorter than the timeouts of requests, which wait for the next worker.
type backoff struct{ since time.Time }

// delay returns the delay before the next restart. The first one has none.
func (b *backoff) delay(now time.Time) time.Duration {
	if b.since.IsZero() {
		b.since = now
		return 0
	}
	d := min(max(now.Sub(b.since)/delayShare, minDelay), maxDelay)
	return d - time.Duration(now.UnixNano())%(d/4) // jitter: agents that crashed together must not restart together
}

// startWorker starts a worker in another goroutine, since that takes a while on a busy machine.
func (g *guard) startWorker() error {
	pair, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_SEQPACKET|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		return os.NewSyscallError("socketpair", err)
	}
	g.starts++
	role := wire.Role{Starts: g.starts, Addresses: g.addresses()}
	if err := g.watch(pair[0], channelID, channelEvents); err != nil {
		closeSocket(pair[0])
		closeSocket(pair[1])
		return err
	}
	g.worker = worker{channel: pair[0], starting: true}
	g.forks <- fork{role: role, channel: pair[1]}
	return nil
}

// onStarted records the result of starting a worker.
func (g *guard) onStarted(f forked) {
	g.worker.starting = false
	if f.err != nil {
		g.onStartFailed(os.NewSyscallError("fork/exec", f.err))
		return
	}
	g.worker.pid, g.worker.started = f.pid, g.now
}

// onStartFailed retries later. If the first worker fails to start, the guard exits.
func (g *guard) onStartFailed(err error) {
	g.log.write("ERROR", "failed to start worker", "err", err.Error())
	if g.worker.channel >= 0 {
		closeSocket(g.worker.channel)
	}
	g.worker = worker{channel: -1}
	if !g.serves {
		g.exit(1)
		return
	}
	g.worker.startAt = g.now.Add(max(minDelay, g.backoff.delay(g.now)))
}

// fork describes a worker to start; forked is the result.
type (
	fork struct {
		role    wire.Role
		channel int // the worker's end of the socket
	}
	forked struct {
		pid int
		err error
	}
)

// exec starts the worker. The calling thread has to live as long as this process.
func (f fork) exec() forked {
	defer closeSocket(f.channel)
	pid, err := syscall.ForkExec(wire.Program(), os.Args, &syscall.ProcAttr{ //nolint:gosec // this program
		Env:   wire.WithRole(os.Environ(), f.role.String()),
		Files: []uintptr{0, 1, 2, uintptr(f.channel)}, // the last one becomes wire.FD
		Sys: &syscall.SysProcAttr{
			Setpgid:   true,            // Ctrl-C in a terminal is for the guard, which passes it on
			Pdeathsig: syscall.SIGKILL, // no worker without its guard, however the guard ended
		},
	})
	return forked{pid, err}
}

func (g *guard) signalWorker(s syscall.Signal) {
	if g.worker.pid != 0 {
		_ = syscall.Kill(g.worker.pid, s) // reap has not waited for the worker, so the PID is still its own
	}
}

// reap waits for children that have ended: the worker, and processes that dead workers left behind. It returns whether
// other children still run.
func (g *guard) reap() (others bool) {
	for !g.worker.starting {
		var status syscall.WaitStatus
		pid, err := syscall.Wait4(-1, &status, syscall.WNOHANG, nil)
		switch {
		case err == syscall.EINTR:
		case err != nil || pid == 0:
			return err == nil
		case pid == g.worker.pid:
			g.onWorkerEnded(status)
		case pid == g.kept:
			g.kept = 0
			g.log.write("WARN", "envoy ended", "pid", pid, "err", howEnded(status))
		}
	}
	return false
}

// onWorkerEnded handles the end of the worker: it restarts the worker, or the guard exits.
func (g *guard) onWorkerEnded(status syscall.WaitStatus) {
	g.drainChannel()
	ran := g.now.Sub(g.worker.started)
	code, why := status.ExitStatus(), howEnded(status)
	if status.Signaled() {
		code = 128 + int(status.Signal())
	}
	g.worker = worker{channel: -1}
	g.killAt = time.Time{}
	switch {
	case g.stopSignals > 0 || !g.serves || code == 0:
		// Do not restart a worker after a termination signal or exit status 0, or one that never listened: an invalid option
		// would be invalid again.
		if status.Signaled() {
			g.log.write("ERROR", "worker ended", "err", why)
		}
		g.leave(code)
		return
	case ran >= stableAfter:
		g.backoff = backoff{}
	}
	delay := g.backoff.delay(g.now)
	g.worker.startAt = g.now.Add(delay)
	g.worker.orphansUntil = g.now.Add(orphanTime)
	kept, answered := g.reclaimRequests()
	g.log.write("ERROR", "worker ended, restarting it", "err", why, "pause", delay.Round(time.Millisecond).String(),
		"requests", kept, "errored", answered)
}

func howEnded(status syscall.WaitStatus) string {
	if status.Signaled() {
		return "signal: " + status.Signal().String()
	}
	return "exit status " + strconv.Itoa(status.ExitStatus())
}

func (g *guard) restartWorker() {
	if g.reap() && g.kept == 0 && g.now.Before(g.worker.orphansUntil) {
		g.worker.startAt = g.now.Add(orphanPoll)
		return
	}
	g.worker = worker{channel: -1}
	if err := g.startWorker(); err != nil {
		g.onStartFailed(err)
	}
}
