package envoy

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
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
// reader; and while nobody reads, what does not fit in is lost.
func (e *Envoy) startKept(log *forwarder) (*process, error) {
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
	pid, err := worker.StartKept(worker.Kept{Path: e.o.Path, Args: e.args(), Dir: e.o.Dir.Path, Record: fileRecord, Output: output})
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", e.o.Path, err)
	}
	record, err := wire.RecordOf(pid)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", e.o.Path, err)
	}
	return e.take(record, log)
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
	p := &process{pid: pid, ended: make(chan struct{})}
	p.signal = func(s syscall.Signal) (err error) {
		return errors.Join(raw.Control(func(fd uintptr) { err = unix.PidfdSendSignal(int(fd), s, nil, 0) }), err)
	}
	go func() {
		p.follow(out, log, func() error {
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
// then begins with it. It returns false if there is none. One that runs with other options is ended.
func (e *Envoy) Adopt() bool {
	if !e.o.Keep {
		return false
	}
	record, err := e.o.Dir.Read(fileRecord)
	if err != nil {
		if !errors.Is(err, fs.ErrNotExist) {
			e.o.Logger.Warn("envoy of the agent before not looked for", "err", err)
		}
		return false
	}
	log := newForwarder(e.o.Logger)
	p, err := e.take(string(record), log)
	if err != nil {
		e.o.Logger.Info("envoy of the agent before has ended", "err", err)
		return false
	}
	if !slices.Equal(commandOf(p.pid), append([]string{e.o.Path}, e.args()...)) {
		p.stop(stopTimeout)
		return false
	}
	if err := worker.TellKept(p.pid); err != nil {
		e.o.Logger.Warn("guard not told of envoy", "err", err)
	}
	e.o.Logger.Info("envoy goes on, it has outlived an agent", "pid", p.pid)
	e.adopted, e.log = p, log
	e.setDown(nil)
	return true
}

func commandOf(pid int) []string {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil {
		return nil // it has ended
	}
	return strings.Split(strings.TrimSuffix(string(text), "\x00"), "\x00")
}

// start starts Envoy.
func (e *Envoy) start(log *forwarder) (*process, error) {
	if err := e.o.Dir.Remove(mesh.SocketAdmin, mesh.SocketReady); err != nil {
		return nil, err
	}
	if e.o.Keep {
		return e.startKept(log)
	}
	return startChild(e.o.Path, e.args(), e.o.Dir.Path, log)
}
