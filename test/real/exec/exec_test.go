package exec

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/test/exechelper"
	"github.com/sonde-mesh/sonde/test/must"
)

func TestSize(t *testing.T) {
	program, err := exechelper.Program()
	must.Do(t, err)
	info, err := os.Stat(program)
	must.Do(t, err)
	if info.Size() > 3_000_000 {
		t.Errorf("it has %d bytes", info.Size())
	}
}

// TestStart has the user's own startup probe or hook start the helper: what comes of it is the same as without.
func TestStart(t *testing.T) {
	tests := map[string]struct {
		then   []string
		code   int
		output string
	}{
		"none":                {nil, 0, ""},
		"passes":              {shell("echo out; echo err >&2"), 0, "out\nerr\n"},
		"fails":               {shell("exit 3"), 3, ""},
		"found on PATH":       {[]string{"true"}, 0, ""},
		"leads its session":   {shell("read -r a b c d e session rest </proc/self/stat; [ $session = $a ]"), 0, ""},
		"does not exist":      {[]string{"/sonde-test-missing"}, 1, "sonde-exec: run \"/sonde-test-missing\": exec: \"/sonde-test-missing\": stat /sonde-test-missing: no such file or directory\n"},
		"not found on PATH":   {[]string{"sonde-test-missing"}, 1, "sonde-exec: run \"sonde-test-missing\": exec: \"sonde-test-missing\": executable file not found in $PATH\n"},
		"with words of flags": {[]string{"echo", "--", "--words=1"}, 0, "-- --words=1\n"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			c := newContainer(t, exechelper.Directory(t))
			if code, output := c.start(execwire.Start{Command: shell("exit 7"), Then: tc.then}); code != tc.code || output != tc.output {
				t.Errorf("exit code %d, output %q, want %d, %q", code, output, tc.code, tc.output)
			}
			c.answers(exited(7))
		})
	}
}

// TestDescriptors has the user's own command list its descriptors, and the command of a check: they have no more than without the helper.
func TestDescriptors(t *testing.T) {
	c := newContainer(t, exechelper.Directory(t))
	list := "cd /proc/self/fd && echo *"
	_, want := c.run(shell(list)...)
	checked := filepath.Join(c.folder, "checked")
	code, output := c.start(execwire.Start{Command: shell("(" + list + ") >" + checked), Then: shell(list)})
	if code != 0 || output != want {
		t.Errorf("exit code %d, descriptors %q, want %q", code, output, want)
	}
	c.answers(exited(0))
	text, err := os.ReadFile(checked)
	must.Do(t, err)
	_, want = c.run(shell("(" + list + ") >" + checked + "; cat " + checked)...)
	if string(text) != want {
		t.Errorf("a check has descriptors %q, want %q", text, want)
	}
}

// TestUmask has a user who lets no other one write: the agent may connect all the same, and the user's command has the umask.
func TestUmask(t *testing.T) {
	program, err := exechelper.Program()
	must.Do(t, err)
	c := newContainer(t, exechelper.Directory(t))
	s := execwire.Start{Directory: c.folder, Peer: uint(os.Getuid()), Timeout: time.Minute, Command: []string{"true"}, Then: shell("umask")}
	args := append([]string{"/bin/sh", "-c", `umask 077; exec "$@"`, "sh", program}, s.Args(execwire.ModeStart)...)
	if code, output := c.run(args...); code != 0 || output != "0077\n" {
		t.Errorf("exit code %d, umask %q, want 0, 0077", code, output)
	}
	info, err := os.Stat(filepath.Join(c.folder, execwire.Socket))
	must.Do(t, err)
	if info.Mode().Perm() != 0o777 {
		t.Errorf("the socket has mode %s", info.Mode())
	}
}

// TestOtherUsers has a folder to which all may write: none but root replaces the socket of root's helper.
func TestOtherUsers(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this needs root, to become another user")
	}
	folder := exechelper.Directory(t)
	must.Do(t, os.Chmod(folder, 0o777))
	c := newContainer(t, folder)
	c.start(execwire.Start{Command: shell("exit 7")})
	other := []string{"setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "--"}
	script := `cd "$1" && ls socket >/dev/null && ! rm -f socket lock 2>/dev/null && ! touch new 2>/dev/null`
	if code, output := c.run(append(other, append(shell(script), "sh", folder)...)...); code != 0 {
		t.Errorf("another user has changed the folder: exit code %d, %s", code, output)
	}
	c.answers(exited(7))
}

// TestStartFails has a folder in which there can be no helper: the user's command runs all the same, and no other file changes.
func TestStartFails(t *testing.T) {
	secret := filepath.Join(t.TempDir(), "secret")
	must.Do(t, os.WriteFile(secret, []byte("text"), 0o600))
	noFolder := "open the lock"
	if os.Getuid() == 0 {
		noFolder = "keep other users out"
	}
	tests := map[string]struct {
		spoil func(folder string) error
		want  string
	}{
		"the lock leads elsewhere": {func(folder string) error { return os.Symlink(secret, filepath.Join(folder, "lock")) }, "open the lock"},
		"the socket is a folder":   {func(folder string) error { return os.MkdirAll(filepath.Join(folder, "socket", "full"), 0o700) }, "remove the socket"},
		"there is no folder":       {os.Remove, noFolder},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			folder := exechelper.Directory(t)
			must.Do(t, tc.spoil(folder))
			c := newContainer(t, folder)
			code, output := c.start(execwire.Start{Command: shell("exit 0"), Then: shell("exit 5")})
			if code != 5 || !strings.HasPrefix(output, "sonde-exec: "+tc.want) {
				t.Errorf("exit code %d, output %q, want 5, %q", code, output, tc.want)
			}
			if answer, err := c.check(); err == nil {
				t.Errorf("a helper answers %+v", answer)
			}
			if info, err := os.Stat(secret); err != nil || info.Mode() != 0o600 || info.Size() != 4 {
				t.Errorf("another file has changed: %v, %v", info, err)
			}
		})
	}
}

// TestFewProcesses has a user who may have few processes and threads: whichever step of the start fails, it says why.
func TestFewProcesses(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this needs root, to become another user")
	}
	const user = "54321" // without other processes
	failed := 0
	for limit := 1; limit < 30; limit++ {
		folder := exechelper.Directory(t)
		must.Do(t, os.Chmod(folder, 0o777))
		c := newContainer(t, folder)
		c.prefix = []string{
			"prlimit", fmt.Sprintf("--nproc=%d", limit), "setpriv", "--reuid=" + user, "--regid=" + user, "--clear-groups", "--",
		}
		_, output := c.start(execwire.Start{Command: shell("exit 7")})
		if strings.Contains(output, "exit status") {
			t.Errorf("with %d processes: %s", limit, output)
		}
		if output != "" {
			failed++
		}
		c.end()
	}
	if failed == 0 {
		t.Error("no start has failed")
	}
}

// TestStartTwice starts the helper as often as a startup probe that fails, and after its end.
func TestStartTwice(t *testing.T) {
	folder := exechelper.Directory(t)
	c := newContainer(t, folder)
	for code := range 5 {
		if got, output := c.start(execwire.Start{Command: shell(fmt.Sprint("exit ", code)), Then: shell("exit 9")}); got != 9 || output != "" {
			t.Errorf("exit code %d, output %q, want 9 and none", got, output)
		}
	}
	c.answers(exited(0)) // of the first
	c.waitProcesses("sonde-exec S")
	if p := c.processes()[0]; p.parent != c.process.Pid {
		t.Errorf("the parent of the helper is %d, want PID 1, %d", p.parent, c.process.Pid)
	}
	c.end()
	if answer, err := c.check(); err == nil {
		t.Fatalf("after the end of the container its helper answers %+v", answer)
	}
	c = newContainer(t, folder)
	c.start(execwire.Start{Command: shell("exit 4")})
	c.answers(exited(4))
}

// TestSignals has commands that signal all processes of the container.
func TestSignals(t *testing.T) {
	c := newContainer(t, exechelper.Directory(t))
	c.start(execwire.Start{Command: shell("for s in HUP INT QUIT TERM USR1 PIPE ALRM; do kill -$s -1; done; exit 6")})
	for range 3 {
		c.answers(exited(6))
	}
	c.waitProcesses("sonde-exec S")
	c.run(shell("kill -KILL -1")...)
	c.waitProcesses("sonde-exec Z") // PID 1 does not reap
	if answer, err := c.check(); err == nil {
		t.Errorf("a helper that is killed answers %+v", answer)
	}
	c.start(execwire.Start{Command: shell("exit 2")})
	c.answers(exited(2))
}

// TestProcessesOfCommands has commands that leave processes behind: nothing but what lives is left, although PID 1 reaps nothing.
func TestProcessesOfCommands(t *testing.T) {
	t.Run("timeout", func(t *testing.T) {
		c := newContainer(t, exechelper.Directory(t))
		c.start(execwire.Start{Timeout: 200 * time.Millisecond, Command: shell("sleep 1000 & (sleep 1000 & sleep 1000) & sleep 1000")})
		for range 2 {
			c.answers(execwire.Answer{Outcome: execwire.TimedOut})
		}
		c.waitReaped("sonde-exec S")
	})
	t.Run("background", func(t *testing.T) {
		c := newContainer(t, exechelper.Directory(t))
		c.start(execwire.Start{Command: shell("(true &); [ -e " + c.folder + "/once ] || { touch " + c.folder + "/once; sleep 1000 & }; exit 3")})
		for range 5 {
			c.answers(exited(3))
		}
		c.waitReaped("sleep S", "sonde-exec S")
	})
}

// TestPause has a container without CPU for longer than the timeout of its command, which has ended before: that is no
// timeout. Each try shows it with a probability of one half.
func TestPause(t *testing.T) {
	for i := range 12 {
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			c := newContainer(t, exechelper.Directory(t))
			const timeout = 2 * time.Second
			c.start(execwire.Start{Timeout: timeout, Command: shell("sleep 0.2; kill -STOP $PPID; sleep 0.2; exit 5")})
			conn := c.connect()
			defer func() { must.Do(t, conn.Close()) }()
			timer := time.NewTimer(timeout + 100*time.Millisecond)
			defer timer.Stop()
			c.waitProcesses("sh Z", "sonde-exec T")
			<-timer.C
			for _, p := range c.processes() {
				if p.name == "sonde-exec" {
					must.Do(t, syscall.Kill(p.pid, syscall.SIGCONT))
				}
			}
			if answer, err := execwire.Read(conn); err != nil || answer != exited(5) {
				t.Errorf("the helper answers %+v, %v, want exit code 5", answer, err)
			}
		})
	}
}

// TestCommandThatCannotBeKilled has a command of another user than the helper's, which has no CAP_KILL: a check ends all
// the same, and no second command runs.
func TestCommandThatCannotBeKilled(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("this needs root, to become another user")
	}
	c := newContainer(t, exechelper.Directory(t))
	c.prefix = []string{"setpriv", "--bounding-set=-kill"}
	c.start(execwire.Start{Timeout: time.Second, Command: []string{"setpriv", "--reuid=65534", "--clear-groups", "sleep", "1000"}})
	for range 3 {
		c.answers(execwire.Answer{Outcome: execwire.TimedOut})
		c.waitProcesses("sleep S", "sonde-exec S")
	}
	for _, p := range c.processes() {
		if p.name == "sleep" {
			must.Do(t, syscall.Kill(p.pid, syscall.SIGKILL))
		}
	}
	c.waitReaped("sleep S", "sonde-exec S") // of the next check
}

// waitReaped checks until the processes are these: what ends after a check is reaped with the next, which may leave
// something behind again.
func (c *container) waitReaped(want ...string) {
	c.t.Helper()
	must.Poll(c.t, fmt.Sprintf("processes %q", want), func(context.Context) error {
		if _, err := c.check(); err != nil {
			return err
		}
		return c.has(want)
	})
}

// TestAgentGoes has the agent close its connection, as at its end: the command ends with it.
func TestAgentGoes(t *testing.T) {
	c := newContainer(t, exechelper.Directory(t))
	c.start(execwire.Start{Command: []string{"sleep", "1000"}})
	for range 3 {
		conn := c.connect()
		c.waitProcesses("sleep S", "sonde-exec S")
		must.Do(t, conn.Close())
		c.waitProcesses("sonde-exec S")
	}
}

func (c *container) connect() net.Conn {
	c.t.Helper()
	conn, err := new(net.Dialer).DialContext(c.t.Context(), "unix", filepath.Join(c.folder, execwire.Socket))
	must.Do(c.t, err)
	return conn
}

// TestAnotherUser asks as a user that may not: the command does not run.
func TestAnotherUser(t *testing.T) {
	program, err := exechelper.Program()
	must.Do(t, err)
	c := newContainer(t, exechelper.Directory(t))
	ran := filepath.Join(c.folder, "ran")
	s := execwire.Start{Directory: c.folder, Peer: uint(os.Getuid()) + 1, Timeout: time.Minute, Command: []string{"touch", ran}}
	c.run(append([]string{program}, s.Args(execwire.ModeStart)...)...)
	for range 100 {
		if answer, err := c.check(); err == nil {
			t.Fatalf("it answers %+v", answer)
		}
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the command ran")
	}
}

// TestSocketThatIsNone has a container that puts something else in place of its socket: the agent reaches no other helper.
func TestSocketThatIsNone(t *testing.T) {
	other, _ := exechelper.Serve(t, execwire.Start{Timeout: time.Minute, Command: []string{"true"}})
	tests := map[string]struct {
		put  func(socket string) error
		want string
	}{
		"a symlink":         {func(socket string) error { return os.Symlink(other, socket) }, "not a socket"},
		"a symlink nowhere": {func(socket string) error { return os.Symlink("missing", socket) }, "not a socket"},
		"a file":            {func(socket string) error { return os.WriteFile(socket, nil, 0o600) }, "not a socket"},
		"a FIFO":            {func(socket string) error { return syscall.Mkfifo(socket, 0o600) }, "not a socket"},
		"nothing":           {func(string) error { return nil }, "no such file or directory"},
		"an old socket": {func(socket string) error {
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: socket})
			must.Do(t, err)
			l.SetUnlinkOnClose(false)
			return l.Close()
		}, "dial unix SOCKET: connect: connection refused"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			socket := filepath.Join(exechelper.Directory(t), "socket")
			must.Do(t, tc.put(socket))
			want := strings.Replace(tc.want, "SOCKET", socket, 1)
			if answer, err := exechelper.Ask(t.Context(), socket); err == nil || !strings.HasSuffix(err.Error(), want) {
				t.Errorf("Ask() = %+v, %v, want %s", answer, err, want)
			}
		})
	}
}

// TestHostilePeers has peers of the agent's user, as root in the container may be: they get nothing but the verdict of their own command, and the
// helper serves the agent afterwards.
func TestHostilePeers(t *testing.T) {
	c := newContainer(t, exechelper.Directory(t))
	hacked := filepath.Join(c.folder, "hacked")
	c.start(execwire.Start{Command: shell("exit 8")})
	var peers sync.WaitGroup
	for i := range 200 {
		peers.Go(func() {
			conn, err := new(net.Dialer).DialContext(t.Context(), "unix", filepath.Join(c.folder, execwire.Socket))
			if err != nil {
				return // the queue is full
			}
			defer func() { _ = conn.Close() }()
			switch i % 3 {
			case 0:
				_, _ = conn.Write([]byte("/bin/sh -c 'touch " + hacked + "'\n"))
			case 1:
				_, _ = conn.Write(make([]byte, 1<<20)) // fails once the helper has closed it
			default:
				if answer, err := execwire.Read(conn); err == nil && answer != exited(8) {
					t.Errorf("a peer gets %+v", answer)
				}
			}
		})
	}
	peers.Wait()
	c.answers(exited(8))
	if _, err := os.Stat(hacked); err == nil {
		t.Error("a peer has run a command")
	}
	c.waitProcesses("sonde-exec S")
}

// TestManyChecks asks two thousand times in a row: the helper has no more descriptors or processes to show for it than
// after a hundred, and no kB of memory for each.
func TestManyChecks(t *testing.T) {
	c := newContainer(t, exechelper.Directory(t))
	c.start(execwire.Start{Command: []string{"/bin/true"}})
	usage := func(checks int) (descriptors, resident int) {
		for range checks {
			c.answers(exited(0))
		}
		c.waitProcesses("sonde-exec S")
		proc := fmt.Sprintf("/proc/%d/", c.processes()[0].pid)
		files, err := os.ReadDir(proc + "fd")
		must.Do(t, err)
		status, err := os.ReadFile(proc + "status")
		must.Do(t, err)
		_, text, _ := strings.Cut(string(status), "VmRSS:")
		_, err = fmt.Sscanf(text, "%d kB", &resident)
		must.Do(t, err)
		return len(files), resident
	}
	files, memory := usage(100)
	began := time.Now()
	const checks = 2000
	filesAfter, memoryAfter := usage(checks)
	t.Logf("%s for a check, %d kB resident", time.Since(began)/checks, memoryAfter)
	if filesAfter > files+2 { // the last connection may be closing
		t.Errorf("it has %d descriptors open, %d before", filesAfter, files)
	}
	const margin = 2000 // 1 kB for each check
	if memoryAfter > memory+margin {
		t.Errorf("%d kB are resident, %d kB before", memoryAfter, memory)
	}
}
