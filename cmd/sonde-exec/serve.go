package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"runtime/debug"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/internal/execwire"
)

// setChildSubreaper is PR_SET_CHILD_SUBREAPER of linux/prctl.h.
const setChildSubreaper = 36

// serve answers one connection at a time, until the container ends. It survives a command that signals all processes.
// It adopts and reaps the processes that commands leave behind, since PID 1 of many containers reaps none.
func serve(s execwire.Start) error {
	debug.SetGCPercent(10)                 // its memory counts against the application's limit
	signal.Notify(make(chan os.Signal, 1)) // caught, since commands would inherit ignored signals
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("become the reaper of commands: %w", errno)
	}
	syscall.CloseOnExec(lockFD)
	file := os.NewFile(listenerFD, "listener")
	l, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	if err := sayReady(); err != nil {
		return fmt.Errorf("close standard streams: %w", err)
	}
	h := helper{start: s}
	return acceptAll(l, func(conn net.Conn) {
		if unixConn, ok := conn.(*net.UnixConn); ok && userOf(unixConn) == int64(s.Peer) {
			h.answer(conn)
		}
		_ = conn.Close() // the peer has its answer, or will get none
		reap(-1)
	})
}

// sayReady tells the process that started the helper that it is ready, and then replaces the streams to that process.
func sayReady() error {
	_, _ = os.Stdout.WriteString(readyText) // an error means that it was killed
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	for _, stream := range []int{syscall.Stdout, syscall.Stderr} {
		if err := syscall.Dup3(int(null.Fd()), stream, 0); err != nil {
			return err
		}
	}
	return null.Close()
}

// acceptPause is the time between two attempts to accept a connection while the node or container lacks descriptors or
// memory.
const acceptPause = 100 * time.Millisecond

// acceptAll handles one connection after the other, until l is closed.
func acceptAll(l net.Listener, handle func(net.Conn)) error {
	for {
		conn, err := l.Accept()
		switch {
		case errors.Is(err, net.ErrClosed):
			return fmt.Errorf("accept: %w", err)
		case err != nil:
			<-time.After(acceptPause)
		default:
			handle(conn)
		}
	}
}

// userOf returns the user of a peer, -1 if it is unknown.
func userOf(conn *net.UnixConn) int64 {
	user := int64(-1)
	raw, err := conn.SyscallConn()
	if err != nil {
		return user
	}
	_ = raw.Control(func(fd uintptr) { // a closed connection has no peer
		if c, err := syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED); err == nil {
			user = int64(c.Uid)
		}
	})
	return user
}

// helper runs the command of a container.
type helper struct {
	start  execwire.Start
	killed int // process group of a killed command that has not ended, 0 for none
}

// killTime is how long a check waits for the end of a killed command, which may hang in the kernel or belong to another
// user. It is less than the agent's execGrace.
const killTime = time.Second

// answer runs the command and sends its result. If the peer disconnects, the command is killed.
func (h *helper) answer(conn net.Conn) {
	gone := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // a peer sends nothing: Read returns when it disconnects
		close(gone)
	}()
	if a, ok := h.check(gone); ok {
		_, _ = conn.Write(a.Encode()) // an error means that the peer has disconnected
	}
}

// check runs the command once, and discards its output. It returns false if gone is closed before the command ends.
// While a killed command has not ended, check starts no other one.
func (h *helper) check(gone <-chan struct{}) (execwire.Answer, bool) {
	if !h.reapKilled(0) {
		return execwire.Answer{Outcome: execwire.TimedOut}, true
	}
	cmd := exec.Command(h.start.Command[0], h.start.Command[1:]...) //nolint:gosec,noctx // it is the user's own
	if errors.Is(cmd.Err, exec.ErrDot) {
		cmd.Err = nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return execwire.Answer{Outcome: execwire.NotStarted, Code: errnoOf(err)}, true
	}
	pid := cmd.Process.Pid
	_ = cmd.Process.Release() // it is waited for below
	ended := make(chan struct{})
	go func() {
		waitFor(pid)
		close(ended)
	}()
	timeout := time.NewTimer(h.start.Timeout)
	defer timeout.Stop()
	select {
	case <-ended:
	case <-timeout.C:
	case <-gone:
		h.kill(pid)
		return execwire.Answer{}, false
	}
	// After a pause of the container, the command may have ended and timed out at once: then its exit code counts.
	if code, ok := exitCode(pid); ok {
		return execwire.Answer{Outcome: execwire.Exited, Code: code}, true
	}
	h.kill(pid)
	return execwire.Answer{Outcome: execwire.TimedOut}, true
}

// kill kills the process group of a command that has not been reaped.
func (h *helper) kill(pid int) {
	_ = syscall.Kill(-pid, syscall.SIGKILL) // an error means that it has just ended, or belongs to another user
	h.killed = pid
	h.reapKilled(killTime)
}

// reapKilled waits for the processes of the killed command, at most this long, and reports whether none is left.
func (h *helper) reapKilled(most time.Duration) bool {
	for began := time.Now(); h.killed != 0; <-time.After(5 * time.Millisecond) {
		switch {
		case reap(-h.killed):
			h.killed = 0
		case time.Since(began) >= most:
			return false
		}
	}
	return true
}

// exitCode reaps a process, and returns its exit code as a container runtime does. It returns false if it still runs.
func exitCode(pid int) (byte, bool) {
	var status syscall.WaitStatus
	if reaped, err := syscall.Wait4(pid, &status, syscall.WNOHANG, nil); err != nil || reaped != pid {
		return 0, false
	}
	const signaled = 128
	if status.Signaled() {
		return byte(signaled + int(status.Signal())), true
	}
	return byte(status.ExitStatus()), true
}

// errnoOf returns the errno with which a command failed to start, 0 if the error has none.
func errnoOf(err error) byte {
	if errno, ok := errors.AsType[syscall.Errno](err); ok {
		return byte(errno)
	}
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return byte(syscall.ENOENT)
	case errors.Is(err, fs.ErrPermission):
		return byte(syscall.EACCES)
	}
	return 0
}

// waitFor waits until a child has ended, but does not reap it: until it is reaped, no other process group gets its
// number.
func waitFor(pid int) {
	const byPID, exited, leave = 1, 4, 0x1000000 // P_PID, WEXITED, WNOWAIT
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), 0, exited|leave, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}

// reap reaps the ended children of a process group; -1 means all children. It reports whether none of them is left.
func reap(group int) bool {
	for {
		pid, err := syscall.Wait4(group, nil, syscall.WNOHANG, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return errors.Is(err, syscall.ECHILD)
		}
	}
}
