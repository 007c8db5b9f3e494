package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/internal/execwire"
)

// Descriptors that the helper inherits. The lock is held while a copy of its descriptor is open: while the helper runs.
const (
	listenerFD = 3
	lockFD     = 4
)

// errRuns means that a helper is already running.
var errRuns = errors.New("the helper runs")

// startOnce starts the helper, with a socket that is ready.
func startOnce(s execwire.Start) error {
	if err := own(s.Directory); err != nil {
		return err
	}
	lock, err := lockDirectory(s.Directory)
	if err != nil {
		return err
	}
	defer func() { _ = lock.Close() }()
	listener, err := listen(filepath.Join(s.Directory, execwire.Socket))
	if err != nil {
		return err
	}
	defer func() { _ = listener.Close() }()
	from, to, err := os.Pipe()
	if err != nil {
		return fmt.Errorf("start the helper: %w", err)
	}
	defer func() { _ = from.Close() }()
	cmd, err := again(execwire.ModeFork, s, to, listener, lock)
	if err == nil {
		err = cmd.Run()
	}
	_ = to.Close() // the helper has it
	if cmd == nil || cmd.Process == nil {
		return fmt.Errorf("start the helper: %w", err)
	}
	if err := readiness(from); err != nil { // the helper's own error says more than its exit code
		return fmt.Errorf("start the helper: %w", err)
	}
	return nil
}

// readyText is what the helper writes when it serves. Before that it may write an error.
const readyText = "ready\n"

// readyTime bounds the wait for the helper.
const readyTime = 5 * time.Second

// readiness returns nil once the helper is ready, or what it has written instead.
func readiness(from *os.File) error {
	const longest = 4 << 10
	_ = from.SetReadDeadline(time.Now().Add(readyTime)) // a pipe has deadlines
	text, err := io.ReadAll(io.LimitReader(from, longest))
	switch wrong := strings.TrimSpace(strings.TrimPrefix(string(text), execwire.Program+": ")); {
	case string(text) == readyText:
		return nil
	case wrong != "":
		return errors.New(wrong)
	case err != nil:
		return err
	}
	return errors.New("it ended before it was ready")
}

// own keeps the other users of the container from replacing the socket of a helper that runs as root. The kubelet lets
// all users write to the directory, which belongs to root.
func own(directory string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	if err := os.Chmod(directory, 0o755); err != nil { //nolint:gosec // the agent, another user, connects
		return fmt.Errorf("keep other users out: %w", err)
	}
	return nil
}

// lockDirectory returns errRuns if another helper has the lock.
func lockDirectory(directory string) (*os.File, error) {
	lock, err := os.OpenFile(filepath.Join(directory, "lock"), os.O_CREATE|os.O_RDWR|syscall.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open the lock: %w", err)
	}
	switch err := syscall.Flock(int(lock.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return nil, errors.Join(errRuns, lock.Close())
	case err != nil:
		return nil, errors.Join(fmt.Errorf("lock %s: %w", lock.Name(), err), lock.Close())
	}
	return lock, nil
}

// listen opens the socket, and replaces one that an earlier helper has left. All users may connect, since the agent
// runs as another user. It sets the mode with umask: chmod could follow a symlink to another file.
func listen(path string) (*os.File, error) {
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the socket of an earlier helper: %w", err)
	}
	mask := syscall.Umask(0)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	syscall.Umask(mask)
	if err != nil {
		return nil, fmt.Errorf("open the socket: %w", err)
	}
	l.SetUnlinkOnClose(false)
	file, err := l.File()
	return file, errors.Join(err, l.Close())
}

// again returns a command that runs this program in another mode, with /dev/null as standard input.
func again(mode execwire.Mode, s execwire.Start, out, listener, lock *os.File) (*exec.Cmd, error) {
	itself, err := os.Executable()
	if err != nil {
		return nil, err
	}
	s.Then = nil
	cmd := exec.Command(itself, s.Args(mode)...) //nolint:gosec,noctx // it is this program, and outlives this process
	cmd.Stdout, cmd.Stderr = out, out
	cmd.ExtraFiles = []*os.File{listener, lock}
	return cmd, nil
}

// fork starts the helper in a session of its own. Once its parent has exited, only PID 1 of the container could wait
// for it.
func fork(s execwire.Start) error {
	cmd, err := again(execwire.ModeServe, s, os.Stdout, os.NewFile(listenerFD, "listener"), os.NewFile(lockFD, "lock"))
	if err != nil {
		return err
	}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	return cmd.Start()
}

// become replaces this process with a command, run as the container runtime would run it. It returns nil if there is no
// command.
func become(command []string) error {
	if len(command) == 0 {
		return nil
	}
	path, err := find(command[0])
	if err == nil {
		err = syscall.Exec(path, command, os.Environ()) //nolint:gosec // it is the user's own
	}
	return fmt.Errorf("run %q: %w", command[0], err)
}

// find returns the path of a program as a container runtime finds it.
func find(name string) (string, error) {
	path, err := exec.LookPath(name)
	if errors.Is(err, exec.ErrDot) {
		err = nil
	}
	return path, err
}
