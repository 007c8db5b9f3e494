// Package exec runs sonde-exec in containers with a PID namespace, whose PID 1 reaps no processes.
package exec

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/execwire"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/exechelper"
	"github.com/sonde-mesh/sonde/test/must"
)

// pidOne is set in the process that is PID 1 of a container.
const pidOne = "SONDE_TEST_PID_ONE"

func TestMain(m *testing.M) {
	if os.Getenv(pidOne) != "" {
		if err := serveContainer(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	slowtest.SkipAll(m, "processes")
	goleak.VerifyTestMain(m)
}

// run is a command that a runtime runs in a container, with its result.
type run struct {
	Command []string
	Code    int
	Output  string
}

// serveContainer runs commands as a runtime does, until its standard input ends. It waits only for these commands.
func serveContainer() error {
	encoder := json.NewEncoder(os.Stdout)
	for decoder := json.NewDecoder(os.Stdin); ; {
		var r run
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return nil
		} else if err != nil {
			return err
		}
		cmd := exec.Command(r.Command[0], r.Command[1:]...)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		out, err := cmd.CombinedOutput() // until all processes with the streams have closed them
		if cmd.ProcessState == nil {
			return err
		}
		r.Code, r.Output = cmd.ProcessState.ExitCode(), string(out)
		if err := encoder.Encode(r); err != nil {
			return err
		}
	}
}

// container is a container with a directory for the socket of its helper.
type container struct {
	t       *testing.T
	folder  string
	prefix  []string // a command that starts the helper
	process *os.Process
	in      *json.Encoder
	out     *json.Decoder
	end     func()
}

// newContainer starts a container. After a restart, its directory is the same.
func newContainer(t *testing.T, folder string) *container {
	t.Helper()
	itself, err := os.Executable()
	must.Do(t, err)
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), itself)
	cmd.Env, cmd.Stderr, cmd.SysProcAttr = append(os.Environ(), pidOne+"=1"), os.Stderr, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Getuid() != 0 {
		same := func(id int) []syscall.SysProcIDMap {
			return []syscall.SysProcIDMap{{ContainerID: id, HostID: id, Size: 1}}
		}
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings, cmd.SysProcAttr.GidMappings = same(os.Getuid()), same(os.Getgid())
	}
	in, err := cmd.StdinPipe()
	must.Do(t, err)
	out, err := cmd.StdoutPipe()
	must.Do(t, err)
	must.Do(t, cmd.Start())
	c := &container{t: t, folder: folder, process: cmd.Process, in: json.NewEncoder(in), out: json.NewDecoder(bufio.NewReader(out))}
	ended := false
	c.end = func() {
		if !ended {
			ended = true
			_ = cmd.Process.Kill() // and so all processes of the namespace
			_ = cmd.Wait()
		}
	}
	t.Cleanup(c.end)
	return c
}

// run runs a command as the runtime does, and returns its exit code and output.
func (c *container) run(command ...string) (code int, output string) {
	c.t.Helper()
	must.Do(c.t, c.in.Encode(run{Command: command}))
	var r run
	must.Do(c.t, c.out.Decode(&r))
	return r.Code, r.Output
}

// start starts the helper by the command that the webhook writes, and returns the result of the user's own command.
func (c *container) start(s execwire.Start) (code int, output string) {
	c.t.Helper()
	program, err := exechelper.Program()
	must.Do(c.t, err)
	s.Directory, s.Peer = c.folder, uint(os.Getuid())
	if s.Timeout == 0 {
		s.Timeout = time.Minute
	}
	return c.run(slices.Concat(c.prefix, []string{program}, s.Args(execwire.ModeStart))...)
}

// check asks the helper for one check.
func (c *container) check() (execwire.Answer, error) {
	return exechelper.Ask(wait.Context(c.t), filepath.Join(c.folder, execwire.Socket))
}

// answers asks the helper, and compares the answer.
func (c *container) answers(want execwire.Answer) {
	c.t.Helper()
	if got, err := c.check(); err != nil || got != want {
		c.t.Errorf("the helper answers %+v, %v, want %+v", got, err, want)
	}
}

// process is a process as /proc shows it.
type process struct {
	pid, parent int
	name, state string
}

// processes returns the processes of the container, except PID 1.
func (c *container) processes() (all []process) {
	c.t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/stat")
	must.Do(c.t, err)
	children := map[int][]process{}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			continue // it has ended
		}
		head, tail, _ := strings.Cut(string(text), " (")
		end := strings.LastIndex(tail, ") ")
		fields := strings.Fields(tail[end+2:])
		p := process{name: tail[:end], state: fields[0]}
		p.pid, err = strconv.Atoi(head)
		must.Do(c.t, err)
		p.parent, err = strconv.Atoi(fields[1])
		must.Do(c.t, err)
		children[p.parent] = append(children[p.parent], p)
	}
	for next := []int{c.process.Pid}; len(next) > 0; next = next[1:] {
		for _, p := range children[next[0]] {
			all, next = append(all, p), append(next, p.pid)
		}
	}
	return all
}

// waitProcesses waits until the processes have these names and states, such as "sonde-exec S", in any order.
func (c *container) waitProcesses(want ...string) {
	c.t.Helper()
	must.Poll(c.t, fmt.Sprintf("processes %q", want), func(context.Context) error { return c.has(want) })
}

// has returns an error unless the container has exactly these processes.
func (c *container) has(want []string) error {
	c.t.Helper()
	var got []string
	for _, p := range c.processes() {
		got = append(got, p.name+" "+p.state)
	}
	slices.Sort(got)
	if !slices.Equal(got, want) {
		return fmt.Errorf("the container has %q", got)
	}
	return nil
}

// exited is the answer for an exit code.
func exited(code byte) execwire.Answer { return execwire.Answer{Outcome: execwire.Exited, Code: code} }

func shell(script string) []string { return []string{"/bin/sh", "-c", script} }
