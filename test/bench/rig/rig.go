// Package rig runs the benchmark's test binary as other processes, each in a role, so that the measured program does
// not share a process with its clients.
package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// Role is the main function of a process, which ends with its input. Its last call is Serve.
type Role func(ctx context.Context, args []string) error

// roleArgument is the first argument of a process with a role; the second is the name of the role.
const roleArgument = "role"

// Main is for TestMain: it runs the process's role if it has one, and the benchmarks otherwise.
func Main(m *testing.M, roles map[string]Role) {
	if len(os.Args) < 3 || os.Args[1] != roleArgument {
		m.Run()
		return
	}
	role := roles[os.Args[2]]
	if role == nil {
		fmt.Fprintf(os.Stderr, "role %q is not known\n", os.Args[2])
		os.Exit(1)
	}
	if err := role(context.Background(), os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// Serve reports the address of a role's listener, and executes commands, one per line, until the
// input ends.
func Serve(at net.Addr, command func(words []string) error) error {
	fmt.Println(at)
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := command(strings.Fields(lines.Text())); err != nil {
			return fmt.Errorf("%s: %w", lines.Text(), err)
		}
		fmt.Println("ok")
	}
	return lines.Err()
}

// Process is a process of a role.
type Process struct {
	// Address is the address of its listener.
	Address string

	role string
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	log  *os.File
}

// Start runs a role with env added to the environment, and returns when the role listens. The process ends with
// the benchmark.
func Start(tb testing.TB, role string, env []string, args ...string) *Process {
	tb.Helper()
	p, err := start(tb, role, env, args)
	if err == nil {
		tb.Cleanup(func() {
			if err := p.stop(); err != nil {
				tb.Error(err)
			}
		})
		p.Address, err = p.line()
	}
	if err != nil {
		tb.Fatal(err)
	}
	return p
}

func start(tb testing.TB, role string, env, args []string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	args = append([]string{roleArgument, role}, args...)
	p := &Process{role: role, cmd: exec.CommandContext(context.WithoutCancel(tb.Context()), self, args...)}
	p.cmd.Env = append(os.Environ(), env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReader(out)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if p.log, err = os.Create(filepath.Join(tb.TempDir(), role+".log")); err != nil {
		return nil, err
	}
	p.cmd.Stderr = p.log
	return p, p.cmd.Start()
}

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

func (p *Process) line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended: %w; it printed: %s", p.role, err, p.logged())
	}
	return strings.TrimSpace(line), nil
}

// Tell sends a command without waiting for its end.
func (p *Process) Tell(format string, args ...any) error {
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	return err
}

// Done waits for the end of a command.
func (p *Process) Done() error {
	line, err := p.line()
	if err == nil && line != "ok" {
		err = fmt.Errorf("%s says %q", p.role, line)
	}
	return err
}

// Ask is Tell and Done.
func (p *Process) Ask(format string, args ...any) error {
	return errors.Join(p.Tell(format, args...), p.Done())
}

// logged returns the end of the log.
func (p *Process) logged() string {
	data, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// endWithin is how long a process may take to end.
const endWithin = 20 * time.Second

func (p *Process) stop() error {
	_ = p.in.Close() // it may have ended
	kill := time.AfterFunc(endWithin, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	err := p.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%s: %w; it says: %s", p.role, err, p.logged())
	}
	return errors.Join(err, p.log.Close())
}
