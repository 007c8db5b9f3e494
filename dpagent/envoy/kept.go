package envoy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/dpagent/guard/worker"
)

// Files in the work directory of an Envoy that outlives its agent.
const (
	fileRecord = "envoy.pid" // of the process, see wire.RecordOf
	fileLog    = "envoy.log" // a FIFO that Envoy writes to
)

// startKept starts Envoy as a child of the guard. It writes its log to a FIFO of which it has both ends, so it never sees the end of a
// reader; and while it is not read, what does not fit in is lost.
func (e *Envoy) startKept(log *forwarder) (Process, error) {
	path := e.o.Dir.File(fileLog)
	if err := e.o.Dir.Remove(fileLog, fileRecord); err != nil {
		return nil, fmt.Errorf("start %s: %w", e.o.Path, err)
	}
	if err := unix.Mkfifo(path, 0o600); err != nil {
		return nil, fmt.Errorf("start %s: make %s: %w", e.o.Path, path, err)
	}
	output, err := unix.Open(path, unix.O_RDWR|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("start %s: open %s: %w", e.o.Path, path, err)
	}
	defer func() { _ = unix.Close(output) }() // Envoy has its own
	pid, err := worker.StartKept(worker.Kept{Path: e.o.Path, Args: e.args(), Env: environment(), Dir: e.o.Dir.Path, Record: fileRecord, Output: output})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", e.o.Path, err)
	}
	record, err := wire.RecordOf(pid)
	if err == nil {
		var p *process
		if p, err = e.take(record, log); err == nil {
			return p, nil
		}
	}
	_ = unix.Kill(pid, unix.SIGKILL) // no agent would follow it
	return nil, fmt.Errorf("start %s: %w", e.o.Path, err)
}

// take follows a process that is a child of the guard, if it is the one of the record.
func (e *Envoy) take(record string, log *forwarder) (*process, error) {
	pid := wire.PIDOf(record)
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("open process %d: %w", pid, err)
	}
	handle := os.NewFile(uintptr(fd), "envoy")
	now, err := wire.RecordOf(pid)
	if err == nil && now != record {
		err = errors.New("another process has its PID")
	}
	raw, failed := handle.SyscallConn()
	out, unread := os.OpenFile(e.o.Dir.File(fileLog), os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err := errors.Join(err, failed, unread); err != nil {
		_ = out.Close() // as it may be already
		return nil, errors.Join(fmt.Errorf("follow process %d: %w", pid, err), handle.Close())
	}
	if err := worker.TellKept(pid); err != nil {
		e.o.Logger.Warn("guard not told of envoy", "err", err)
	}
	p := &process{pid: pid, forward: log.forward, ended: make(chan struct{})}
	p.signal = func(s syscall.Signal) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), s, nil, 0) }), err)
	}
	go func() {
		p.follow(out, func() error {
			return raw.Read(func(fd uintptr) bool { // it is readable when the process has ended
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
				return err == nil && n > 0
			})
		})
		_ = out.Close() // it was only read
		_ = handle.Close()
	}()
	return p, nil
}

// Adopt takes over the Envoy that another worker of this guard has left behind when it died, with its listeners and connections: Run
// then begins with it. It returns false if there is none. One of another binary, or with other options, is ended.
func (e *Envoy) Adopt() bool {
	if !e.o.Keep {
		return false
	}
	record, err := e.o.Dir.Read(fileRecord)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.o.Logger.Warn("envoy of the previous agent not looked for", "err", err)
		}
		return false
	}
	log := newForwarder(e.o.Logger)
	p, err := e.take(string(record), log)
	if err != nil {
		e.o.Logger.Info("envoy of the previous agent has exited", "err", err)
		return false
	}
	if !e.isOurs(p.pid) {
		stop(p, stopTimeout)
		return false
	}
	e.o.Logger.Info("envoy adopted, it has outlived the previous agent", "pid", p.pid)
	e.adopted = &instance{p, log}
	e.setDown(nil)
	return true
}

// isOurs says whether a process is what would be started now: the binary may have been replaced, or options changed.
func (e *Envoy) isOurs(pid int) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	command, err := os.ReadFile(proc + "cmdline")
	if err != nil || string(command) != strings.Join(append([]string{e.o.Path}, e.args()...), "\x00")+"\x00" {
		return false // or it has ended
	}
	runs, err := os.Stat(proc + "exe")
	if err != nil {
		return false
	}
	there, err := os.Stat(e.o.Path)
	return err == nil && os.SameFile(runs, there)
}

// start starts Envoy.
func (e *Envoy) start(log *forwarder) (Process, error) {
	if err := e.o.Dir.Remove(mesh.SocketAdmin, mesh.SocketReady); err != nil {
		return nil, err
	}
	if e.o.Keep {
		return e.startKept(log)
	}
	return e.o.Launcher.Launch(Command{Path: e.o.Path, Args: e.args(), Dir: e.o.Dir.Path, Forward: log.forward})
}
