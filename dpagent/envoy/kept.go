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
	fileRecord = "envoy.pid" // identifies the process, see wire.RecordOf
	fileLog    = "envoy.log" // a FIFO that Envoy writes to
)

// startKept starts Envoy as a child of the guard. Envoy writes its log to a FIFO that it has open for reading too, so
// that writes never fail when the agent dies. While no agent reads the FIFO, output beyond its capacity is lost.
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
	defer func() { _ = unix.Close(output) }() // Envoy has its own descriptor
	pid, err := worker.StartKept(worker.Kept{Path: e.o.Path, Args: e.args(), Env: environment(), Dir: e.o.Dir.Path,
		Record: fileRecord, Output: output})
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

// take starts to follow the process of a record, a child of the guard. It returns an error if the PID now belongs to
// another process.
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
		_ = out.Close() // may fail: out is nil if it was not opened
		return nil, errors.Join(fmt.Errorf("follow process %d: %w", pid, err), handle.Close())
	}
	if err := worker.TellKept(pid); err != nil {
		e.o.Logger.Warn("failed to report envoy to the guard", "err", err)
	}
	p := &process{pid: pid, forward: log.forward, ended: make(chan struct{})}
	p.signal = func(s syscall.Signal) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), s, nil, 0) }), err)
	}
	go func() {
		p.follow(out, func() error {
			return raw.Read(func(fd uintptr) bool { // readable once the process has ended
				n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0)
				return err == nil && n > 0
			})
		})
		_ = out.Close() // it was only read
		_ = handle.Close()
	}()
	return p, nil
}

// Adopt takes over the Envoy that an earlier worker of this guard left behind when it died, with its listeners and
// connections. Run then begins with this Envoy. Adopt returns false if no Envoy is left, or if it had to stop one that
// uses another binary or other options.
func (e *Envoy) Adopt() bool {
	if !e.o.Keep {
		return false
	}
	record, err := e.o.Dir.Read(fileRecord)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.o.Logger.Warn("failed to read the record of the previous agent's envoy", "err", err)
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
	e.o.Logger.Info("adopted the envoy of the previous agent", "pid", p.pid)
	e.adopted = &instance{p, log}
	e.setDown(nil)
	return true
}

// isOurs reports whether a process is the same Envoy that start would run now: the binary may have been replaced, or
// the options changed.
func (e *Envoy) isOurs(pid int) bool {
	proc := fmt.Sprintf("/proc/%d/", pid)
	command, err := os.ReadFile(proc + "cmdline")
	if err != nil || string(command) != strings.Join(append([]string{e.o.Path}, e.args()...), "\x00")+"\x00" {
		return false // also if the process has ended
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
