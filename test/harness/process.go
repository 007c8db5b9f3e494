package harness

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// spawner starts processes from one thread, which lives as long as the spawner. The kernel kills each process when
// the thread that started it ends (PR_SET_PDEATHSIG): no process outlives this program.
type spawner struct {
	requests chan func()
	done     chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{requests: make(chan func()), done: make(chan struct{})}
	go func() {
		defer close(s.done)
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for f := range s.requests {
			f()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error)
	s.requests <- func() { result <- cmd.Start() }
	return <-result
}

func (s *spawner) close() {
	close(s.requests)
	<-s.done
}

// Process is a program, running or ended.
type Process struct {
	// Name of the process, such as "b-1 agent".
	Name string
	// Log is the file with its output.
	Log string

	cmd  *exec.Cmd
	done chan struct{}
	err  error // the result of Wait; valid once done is closed
}

// startProcess runs a program and appends its output to a file. The program has its own process group, so that Ctrl-C
// in the terminal does not reach it. startProcess adds env to the environment.
func (s *spawner) startProcess(
	name, log, directory string, env []string, path string, args ...string,
) (*Process, error) {
	out, err := os.OpenFile(log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { _ = out.Close() }() // the process has its own file descriptor
	cmd := exec.CommandContext(context.Background(), path, args...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = directory, out, out
	cmd.Env = append(os.Environ(), env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL, Setpgid: true}
	if err := s.start(cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	p := &Process{Name: name, Log: log, cmd: cmd, done: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// PID is the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Running returns whether the process is still running.
func (p *Process) Running() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the process as kill -9 does, and waits for its end. It does not kill the process's children.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill() // an error means that the process has ended
	<-p.done
}

// Terminate sends SIGTERM to the process and waits for its end. It returns an error if ctx ends first, or if the exit
// code is not 0.
func (p *Process) Terminate(ctx context.Context) error {
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("terminate %s: %w", p.Name, err)
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		return fmt.Errorf("terminate %s: still running: %w", p.Name, context.Cause(ctx))
	}
	if p.err != nil {
		return fmt.Errorf("terminate %s: %w", p.Name, p.err)
	}
	return nil
}

// Children returns the ids of this process's descendants whose program has that name.
func (p *Process) Children(program string) ([]int, error) {
	paths, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		return nil, err
	}
	parents := map[string]string{}
	var named []string
	for _, path := range paths {
		data, err := os.ReadFile(path)
		if err != nil {
			continue // the process has ended
		}
		// "pid (name) state ppid ...", where the name may contain spaces
		head, rest, _ := strings.Cut(string(data), " (")
		end := strings.LastIndex(rest, ") ")
		if end < 0 {
			continue
		}
		fields := strings.Fields(rest[end+2:])
		if len(fields) < 2 || fields[0] == "Z" {
			continue
		}
		parents[head] = fields[1]
		if rest[:end] == program {
			named = append(named, head)
		}
	}
	own := strconv.Itoa(p.PID())
	var children []int
	for _, id := range named {
		above := parents[id]
		for above != "" && above != own {
			above = parents[above]
		}
		if above == "" {
			continue
		}
		pid, err := strconv.Atoi(id)
		if err != nil {
			return nil, err
		}
		children = append(children, pid)
	}
	return children, nil
}

// tail returns the last lines of the process's log.
func (p *Process) tail(lines int) string {
	data, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(data)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// Lines counts the lines of the process's log that contain all these texts.
func (p *Process) Lines(texts ...string) (int, error) {
	data, err := os.ReadFile(p.Log)
	count := 0
	for line := range strings.Lines(string(data)) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			count++
		}
	}
	return count, err
}

// Logged returns an error unless a line of the process's log contains all these texts.
func (p *Process) Logged(texts ...string) error {
	n, err := p.Lines(texts...)
	if err == nil && n == 0 {
		err = errors.New("no such line")
	}
	return err
}

// patience bounds waits and calls whose context has no deadline. It is long because a busy machine is slow.
const patience = 5 * time.Minute

// bounded returns ctx with a deadline of patience, unless ctx has a deadline.
func bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, has := ctx.Deadline(); has {
		return context.WithCancel(ctx)
	}
	return context.WithTimeout(ctx, patience)
}

// Poll calls check every 20 ms until check returns nil or ctx ends, or for five minutes if ctx has no deadline. The
// error contains what, and the last error of check.
func Poll(ctx context.Context, what string, check func(context.Context) error) error {
	ctx, cancel := bounded(ctx)
	defer cancel()
	began := time.Now()
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	var amiss error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if errors.Is(err, errHopeless) {
			return fmt.Errorf("wait for %s: %w", what, err)
		}
		if amiss == nil || ctx.Err() == nil { // the previous error says more than "context canceled"
			amiss = err
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("wait for %s for %s: %w", what, time.Since(began).Round(time.Second), amiss)
		case <-ticker.C:
		}
	}
}

// errHopeless makes Poll return early.
var errHopeless = errors.New("it has ended")

// below returns the ids of the processes whose working directory is dir or below it.
func below(dir string) ([]int, error) {
	links, err := filepath.Glob("/proc/[0-9]*/cwd")
	if err != nil {
		return nil, err
	}
	var pids []int
	for _, link := range links {
		cwd, err := os.Readlink(link)
		if err != nil || (cwd != dir && !strings.HasPrefix(cwd, dir+"/")) {
			continue // the process has ended, or belongs to another user
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(link)))
		if err != nil {
			return nil, err
		}
		pids = append(pids, pid)
	}
	return pids, nil
}
