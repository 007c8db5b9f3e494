// Package rig has what the benchmarks share: processes of the benchmark's own program in a role, and how figures are told.
package rig

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Process is a process that a benchmark measures or asks.
type Process struct {
	cmd *exec.Cmd
	in  io.WriteCloser // nil for another program
	out *bufio.Reader
	log *os.File
}

// StartRole runs this program as --role=role, with more arguments and variables of its environment. It logs into the directory, answers
// lines with lines, and ends when its input ends.
func StartRole(ctx context.Context, directory, role string, env []string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &Process{cmd: exec.CommandContext(ctx, self, append([]string{"--role=" + role}, args...)...)}
	p.cmd.Env = append(os.Environ(), env...)
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 1<<16)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.start(filepath.Join(directory, role+".log"))
}

// Start runs another program, which logs into the directory and ends when it is told to by a signal.
func Start(ctx context.Context, directory, program string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.CommandContext(ctx, program, args...)}
	return p, p.start(filepath.Join(directory, filepath.Base(program)+".log"))
}

func (p *Process) start(log string) (err error) {
	if p.log, err = os.Create(log); err != nil {
		return err
	}
	p.cmd.Stderr = p.log
	return p.cmd.Start()
}

// PID is the id of the process.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// IsRole says whether it is this program, and answers lines.
func (p *Process) IsRole() bool { return p.in != nil }

// Line reads a line of a role.
func (p *Process) Line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended: %w; it says: %s", p.cmd.Args[1], err, p.logged())
	}
	return strings.TrimSpace(line), nil
}

// Tell sends a line to a role and does not wait for the answer.
func (p *Process) Tell(format string, args ...any) error {
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	return err
}

// Answered reads the answer of a role. It must be "ok".
func (p *Process) Answered() error {
	line, err := p.Line()
	if err == nil && line != "ok" {
		err = fmt.Errorf("%s says %q", p.cmd.Args[1], line)
	}
	return err
}

// Ask is Tell and Answered.
func (p *Process) Ask(format string, args ...any) error {
	return errors.Join(p.Tell(format, args...), p.Answered())
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

// Stop ends the process: a role by closing its input, another program by a signal.
func (p *Process) Stop() error {
	if p.in != nil {
		_ = p.in.Close() // it may have ended
	} else {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	kill := time.AfterFunc(endWithin, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	err := p.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%s: %w; it says: %s", p.cmd.Args[0], err, p.logged())
	}
	return errors.Join(err, p.log.Close())
}
