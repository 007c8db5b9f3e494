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
	delayShare = 30 // the delay is this part of the time since the first crash
	// stableAfter is how long a worker has to run before the next restart has no delay again.
	stableAfter = 10 * time.Second
	// orphanTime is how long a restart waits for the end of the processes that the last worker has left behind. Envoy takes
	// about 10 ms.
	orphanTime = 2 * time.Second
	orphanPoll = 10 * time.Millisecond
)

// worker is the process that answers requests.
type worker struct {
	pid     int // 0 if there is none
	channel int // the guard's end of the socket, -1 if it is closed
	ready   bool
	blocked bool // the socket has no room
	started time.Time

	starting     bool      // it is being forked: do not reap children before its PID is known
	startAt      time.Time // when the next worker is started, zero if none is due
	orphansUntil time.Time // how long the start may wait for processes that the last worker has left behind
}

// backoff computes the delays of restarts, which grow with the time since the first crash. For the first half minute they
// are shorter than the timeouts of requests, which wait for the next worker.
type backoff struct{ since time.Time }

// delay returns the delay before the next restart. The first one has none.
func (b *backoff) delay(now time.Time) time.Duration {
	if b.since.IsZero() {
		b.since = now
		return 0
	}
	d := min(max(now.Sub(b.since)/delayShare, minDelay), maxDelay)
	return d - time.Duration(now.UnixNano())%(d/4) // agents that have crashed together do not restart together
}

// startWorker has a worker started: the guard does not wait for that, which takes a while on a busy machine.
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

// onStarted records a worker that was started.
func (g *guard) onStarted(f forked) {
	g.worker.starting = false
	if f.err != nil {
		g.onStartFailed(os.NewSyscallError("fork/exec", f.err))
		return
	}
	g.worker.pid, g.worker.started = f.pid, g.now
}

// onStartFailed tries again later. If it is the first worker, the guard ends.
func (g *guard) onStartFailed(err error) {
	g.log.write("ERROR", "worker cannot start", "err", err.Error())
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

// fork describes a worker to start, and forked is the result.
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
	pid, err := syscall.ForkExec(wire.Program(), os.Args, &syscall.ProcAttr{ //nolint:gosec // it is this program
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
		_ = syscall.Kill(g.worker.pid, s) // it has not been waited for, so the PID is still its own
	}
}

// reap waits for children that have ended: the worker, and processes that dead workers have left behind. It returns whether
// other children are still running.
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

// onWorkerEnded handles the end of a worker: the guard ends, too, or the worker is restarted.
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
		// A signal has ended it, or it has ended by itself, or it has never listened: a bad option would be bad again.
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
	g.log.write("ERROR", "worker ended, it will be started again", "err", why, "pause", delay.Round(time.Millisecond).String(),
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
