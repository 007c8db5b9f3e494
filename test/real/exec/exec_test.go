package exec

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/test/exechelper"
	"github.com/sonde-mesh/sonde/test/must"
)

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

// TestProcessesOfCommands has commands that leave processes behind: only live processes remain, although PID 1 reaps
// nothing.
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
		t.Run(strconv.Itoa(i), func(t *testing.T) {
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

// TestCommandThatCannotBeKilled has a command of another user than the helper, which has no CAP_KILL: a check still
// ends, and no second command runs.
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

// TestSocketThatIsNone has a container that replaces its socket with something else: the agent reaches no other helper.
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

// TestHostilePeers has peers with the agent's user, which root in the container can become: they only get the verdict
// of their own command, and the helper still serves the agent.
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
