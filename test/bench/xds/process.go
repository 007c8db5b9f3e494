package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/sonde-mesh/sonde/dpagent/retry"
	"github.com/sonde-mesh/sonde/test/bench/proc"
)

// process is a subject or the client process.
type process struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	log     *os.File
	address string
}

// startRole runs this program in a role. It logs to a file.
func startRole(ctx context.Context, directory, role string, args ...string) (*process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p := &process{cmd: exec.CommandContext(ctx, self, append([]string{"--role=" + role}, args...)...)}
	if p.log, err = os.Create(filepath.Join(directory, role+".log")); err != nil {
		return nil, err
	}
	p.cmd.Stderr = p.log
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	p.out = bufio.NewReaderSize(out, 1<<16)
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	return p, p.cmd.Start()
}

// startSubject starts a role that prints where it listens.
func startSubject(ctx context.Context, directory, role string, args ...string) (*process, error) {
	p, err := startRole(ctx, directory, role, args...)
	if err != nil {
		return nil, err
	}
	if p.address, err = p.line(); err != nil {
		return nil, errors.Join(err, p.stop())
	}
	return p, nil
}

// line reads a line.
func (p *process) line() (string, error) {
	line, err := p.out.ReadString('\n')
	if err != nil {
		return "", fmt.Errorf("%s ended: %w; it says: %s", p.cmd.Args[1], err, p.logged())
	}
	return strings.TrimSpace(line), nil
}

// logged returns the end of the process's log.
func (p *process) logged() string {
	data, err := os.ReadFile(p.log.Name())
	if err != nil {
		return err.Error()
	}
	return string(data[max(0, len(data)-2000):])
}

// tell sends a line and does not wait for the answer.
func (p *process) tell(format string, args ...any) error {
	_, err := fmt.Fprintf(p.in, format+"\n", args...)
	return err
}

// answered reads the answer to a line. It must be "ok".
func (p *process) answered() error {
	line, err := p.line()
	if err == nil && line != "ok" {
		err = fmt.Errorf("%s says %q", p.cmd.Args[1], line)
	}
	return err
}

func (p *process) ask(format string, args ...any) error {
	return errors.Join(p.tell(format, args...), p.answered())
}

// order sends an order to the clients, and decodes the answer unless answer is nil.
func (p *process) order(o order, answer any) error {
	data, err := json.Marshal(o)
	if err != nil {
		return err
	}
	if err := p.tell("%s", data); err != nil {
		return err
	}
	line, err := p.line()
	if err != nil || answer == nil {
		return err
	}
	return json.Unmarshal([]byte(line), answer)
}

// stop ends the process: a role by closing its input, another program by a signal.
func (p *process) stop() error {
	if p.in != nil {
		_ = p.in.Close() // it may have ended
	} else {
		_ = p.cmd.Process.Signal(syscall.SIGTERM)
	}
	kill := time.AfterFunc(20*time.Second, func() { _ = p.cmd.Process.Kill() })
	defer kill.Stop()
	err := p.cmd.Wait()
	if err != nil {
		err = fmt.Errorf("%s: %w; it says: %s", p.cmd.Args[0], err, p.logged())
	}
	return errors.Join(err, p.log.Close())
}

// cpu is the CPU time of all threads, in seconds.
func (p *process) cpu() (float64, error) {
	spent, err := proc.CPU(p.cmd.Process.Pid)
	return spent.Ran.Seconds(), err
}

// poll is the interval between two checks whether a process is at rest.
const poll = 100 * time.Millisecond

// restingCPU is cpu once the process is at rest: the work of a change goes on for a while after the last ACK.
func (p *process) restingCPU(ctx context.Context) (float64, error) {
	last := 0.0
	for range 100 {
		now, err := p.cpu()
		if err != nil || now-last < 0.001 {
			return now, err
		}
		last = now
		if err := retry.Wait(ctx, poll); err != nil {
			return 0, err
		}
	}
	return last, nil
}

func (p *process) rss() (float64, error) {
	m, err := proc.MemoryOf(p.cmd.Process.Pid)
	return m.RssAnon, err
}

// settleAtMost bounds the wait for a program that returns memory when it wants to.
const settleAtMost = 15 * time.Second

// restingRSS is rss once it no longer changes. Roles are told to collect garbage and return memory; another program cannot
// be told.
func (p *process) restingRSS(ctx context.Context) (float64, error) {
	if p.in != nil {
		for range 2 { // objects with a finalizer are freed by the second one
			if err := p.ask("collect"); err != nil {
				return 0, err
			}
		}
	}
	last, stays := 0.0, 0
	for began := time.Now(); stays < 6 && time.Since(began) < settleAtMost; {
		now, err := p.rss()
		if err != nil {
			return 0, err
		}
		if stays++; math.Abs(now-last) > 0.002*now {
			stays = 0
		}
		last = now
		if err := retry.Wait(ctx, poll); err != nil {
			return 0, err
		}
	}
	return last, nil
}
