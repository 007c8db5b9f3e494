package exec

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
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

// TestDescriptors lists the open descriptors of the user's own command and of a check's command: they have no more than
// without the helper.
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

// TestUmask has a umask that denies other users access: the agent can still connect, and the user's command has the
// umask.
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

// TestStartFails has a folder that cannot have a helper: the user's command still runs, and no other file changes.
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

// TestStartIsRetried has a startup probe of Sonde's that always fails to start the helper: the kubelet shows the first
// errors, then the container runs.
func TestStartIsRetried(t *testing.T) {
	tests := map[string]struct {
		spoil func(folder string) error
		codes []int
	}{
		"the socket is a folder": {
			func(folder string) error { return os.MkdirAll(filepath.Join(folder, "socket", "full"), 0o700) },
			[]int{1, 1, 1, 1, 1, 0, 0},
		},
		"nothing can be counted": {os.Remove, []int{0, 0}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			folder := exechelper.Directory(t)
			must.Do(t, tc.spoil(folder))
			c := newContainer(t, folder)
			for i, want := range tc.codes {
				code, output := c.start(execwire.Start{Command: shell("exit 0"), Retried: true})
				if code != want || !strings.HasPrefix(output, "sonde-exec: ") {
					t.Errorf("start %d: exit code %d, %q, want %d", i, code, output, want)
				}
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
