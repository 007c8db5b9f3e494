package envoy

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"
)

// process is one run of a program that dies with this one.
type process struct {
	cmd   *exec.Cmd
	ended chan struct{} // closed when it has ended and its log is read
	end   error
}

// lastWords is how long the log is read after the end.
const lastWords = time.Second

var errEnded = errors.New("it ended by itself")

// start starts a program. Its output goes to log until it ends.
func start(path string, args []string, dir string, log *forwarder) (*process, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	cmd := exec.Command(path, args...) //nolint:gosec,noctx // the operator names the program; stop ends it
	cmd.Dir, cmd.Stdout, cmd.Stderr = dir, in, in
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setpgid:   true,            // Ctrl-C in a terminal is for the agent, which drains first
		Pdeathsig: syscall.SIGKILL, // no Envoy without its agent, however that ended
	}
	p := &process{cmd: cmd, ended: make(chan struct{})}
	started := make(chan error)
	go func() {
		// The kernel sends Pdeathsig when the thread that forked ends: this one stays until the child has ended.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := cmd.Start()
		_ = in.Close() // the child has its own
		started <- err
		if err == nil {
			p.wait(out, log)
		}
		_ = out.Close() // read to its end
	}()
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	return p, nil
}

// wait returns when the program has ended and all that it wrote is forwarded.
func (p *process) wait(out *os.File, log *forwarder) {
	defer close(p.ended)
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		log.forward(out)
	}()
	if p.end = p.cmd.Wait(); p.end == nil {
		p.end = errEnded
	}
	// A child of the program may hold the pipe open: its log does not count.
	_ = out.SetReadDeadline(time.Now().Add(lastWords)) // a pipe takes deadlines
	<-forwarded
}

// err is how it ended, never nil. It waits for the end.
func (p *process) err() error {
	<-p.ended
	return p.end
}

// stop asks the program to end, kills it if it has not after patience, and waits for its end.
func (p *process) stop(patience time.Duration) {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended just now
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-p.ended:
	case <-timer.C:
		_ = p.cmd.Process.Kill() // as above
		<-p.ended
	}
}
