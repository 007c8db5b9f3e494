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

// serve answers one connection after the other, until the container ends. It survives a check that signals all
// processes, and inherits what checks leave behind: PID 1 of many containers reaps nothing.
func serve(s execwire.Start) error {
	debug.SetGCPercent(10)                 // its memory counts as the application's
	signal.Notify(make(chan os.Signal, 1)) // unlike ignored signals, commands do not inherit them
	if _, _, errno := syscall.RawSyscall(syscall.SYS_PRCTL, setChildSubreaper, 1, 0); errno != 0 {
		return fmt.Errorf("become the reaper of commands: %w", errno)
	}
	syscall.CloseOnExec(lockFD)
	file := os.NewFile(listenerFD, "listener")
	l, err := net.FileListener(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("listen: %w", err)
	}
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accept: %w", err)
		}
		if unixConn, ok := conn.(*net.UnixConn); ok && userOf(unixConn) == int64(s.Peer) {
			answer(conn, s)
		}
		_ = conn.Close() // the peer has the answer, or gets none
		reap(-1, syscall.WNOHANG)
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

// answer runs the command, and says what became of it. If the peer goes, so does the command.
func answer(conn net.Conn, s execwire.Start) {
	gone := make(chan struct{})
	go func() {
		_, _ = conn.Read(make([]byte, 1)) // a peer has nothing to say
		close(gone)
	}()
	if a, ok := check(s, gone); ok {
		_, _ = conn.Write(a.Encode()) // an error means that the peer is gone
	}
}

// check runs the command once. What it writes is lost. It returns false if gone was closed before it ended.
func check(s execwire.Start, gone <-chan struct{}) (execwire.Answer, bool) {
	cmd := exec.Command(s.Command[0], s.Command[1:]...) //nolint:gosec,noctx // it is the user's own
	if errors.Is(cmd.Err, exec.ErrDot) {
		cmd.Err = nil
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return execwire.Answer{Outcome: execwire.NotStarted, Code: errnoOf(err)}, true
	}
	ended := make(chan struct{})
	go func() {
		waitFor(cmd.Process.Pid)
		close(ended)
	}()
	timeout := time.NewTimer(s.Timeout)
	defer timeout.Stop()
	late, left := false, false
	select {
	case <-ended:
	case <-timeout.C:
		late = true
	case <-gone:
		left = true
	}
	group := -cmd.Process.Pid
	if late || left {
		_ = syscall.Kill(group, syscall.SIGKILL) // an error means that it has just ended
		<-ended
	}
	_ = cmd.Wait() // the state says it, too
	if late || left {
		reap(group, 0) // they have been killed
	}
	switch {
	case left:
		return execwire.Answer{}, false
	case late:
		return execwire.Answer{Outcome: execwire.TimedOut}, true
	}
	return execwire.Answer{Outcome: execwire.Exited, Code: exitCode(cmd.ProcessState)}, true
}

// exitCode returns the exit code as a container runtime does.
func exitCode(state *os.ProcessState) byte {
	const signaled = 128
	if status, ok := state.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return byte(signaled + int(status.Signal()))
	}
	return byte(state.ExitCode())
}

// errnoOf returns the errno of an error to start a command, 0 for another one.
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

// waitFor waits until a child has ended, and leaves it to be reaped: until then no other process group has its number.
func waitFor(pid int) {
	const byPID, exited, leave = 1, 4, 0x1000000 // P_PID, WEXITED, WNOWAIT
	for {
		_, _, errno := syscall.Syscall6(syscall.SYS_WAITID, byPID, uintptr(pid), 0, exited|leave, 0, 0)
		if errno != syscall.EINTR {
			return
		}
	}
}

// reap reaps what a command has left behind, of a process group or of all. No command runs meanwhile.
func reap(group, options int) {
	for {
		pid, err := syscall.Wait4(group, nil, options, nil)
		if pid <= 0 && !errors.Is(err, syscall.EINTR) {
			return
		}
	}
}
