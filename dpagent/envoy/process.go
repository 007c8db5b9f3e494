package envoy

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is a running Envoy.
type process struct {
	pid     int
	forward func(io.Reader)
	signal  func(syscall.Signal) error
	ended   chan struct{} // closed when the process has ended and its output is read
	end     error         // how the process ended; valid after ended
}

var _ Process = (*process)(nil)

// PID implements Process.
func (p *process) PID() int { return p.pid }

// Activity implements Process.
func (p *process) Activity() (Activity, bool) { return activityOf(p.pid) }

// Signal implements Process.
func (p *process) Signal(s syscall.Signal) error { return p.signal(s) }

// Ended implements Process.
func (p *process) Ended() <-chan struct{} { return p.ended }

// Err implements Process.
func (p *process) Err() error {
	<-p.ended
	return p.end
}

// logTimeout is how long the output is still read after the end of the process.
const logTimeout = time.Second

var errEnded = errors.New("process ended")

// startChild starts a program, which the kernel kills if this process dies.
func startChild(c Command) (*process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	cmd := exec.Command(c.Path, c.Args...) //nolint:gosec,noctx // the operator names the program; stop ends it
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = c.Dir, environment(), in, in
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C in a terminal is for the agent, which drains first
		Pdeathsig: syscall.SIGKILL, // no Envoy without its agent, however the agent ended
	}
	p := &process{forward: c.Forward, ended: make(chan struct{}),
		signal: func(s syscall.Signal) error { return cmd.Process.Signal(s) }}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends, so this thread must live as long as the child.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = in.Close() // the child has its own descriptor
		if err == nil {
			p.pid = cmd.Process.Pid
		}
		started <- err
		if err == nil {
			p.follow(out, cmd.Wait)
		}
		_ = out.Close() // read to its end
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", c.Path, err)
	}
	return p, nil
}

// follow waits until wait reports the end of the process and its output is forwarded.
func (p *process) follow(out *os.File, wait func() error) {
	defer close(p.ended)
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		p.forward(out)
	}()
	if p.end = wait(); p.end == nil {
		p.end = errEnded
	}
	// A child of the process may keep the pipe open, so do not wait for the end of the output.
	_ = out.SetReadDeadline(time.Now().Add(logTimeout)) // pipes support deadlines
	<-forwarded
}

// stop sends SIGTERM, after timeout SIGKILL, and waits for the end of the process.
func stop(p Process, timeout time.Duration) {
	_ = p.Signal(syscall.SIGTERM) // the process may have ended just now
	timer := time.NewTimer(timeout)
	defer timer.Stop()
	select {
	case <-p.Ended():
	case <-timer.C:
		_ = p.Signal(syscall.SIGKILL) // as above
		<-p.Ended()
	}
}
