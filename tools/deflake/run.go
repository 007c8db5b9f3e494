package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// copies is the number of parallel copies of a package.
const copies = 8

// compiler compiles tests.
type compiler struct {
	*repository
	race      bool
	directory string // directory of the test programs
}

// hasCompiler reports whether a C compiler is installed, which the race detector needs.
func (r *repository) hasCompiler(ctx context.Context) (bool, error) {
	cc, err := r.run(ctx, r.root, "go", "env", "CC")
	if err != nil {
		return false, err
	}
	name, _, _ := strings.Cut(strings.TrimSpace(cc), " ")
	_, err = exec.LookPath(name)
	return err == nil, nil
}

// compile returns the test program of a package.
func (c *compiler) compile(ctx context.Context, p *pkg) (string, error) {
	program := filepath.Join(c.directory, strings.ReplaceAll(p.directory, "/", "_")+".test")
	args := []string{"test", "-c", "-o", program}
	env := "CGO_ENABLED=0"
	if c.race {
		args, env = append(args, "-race"), "CGO_ENABLED=1"
	}
	cmd := exec.CommandContext(ctx, "go", append(args, p.path)...)
	cmd.Dir, cmd.Env = filepath.Join(c.root, p.module), append(os.Environ(), env)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile tests of %s: %w\n%s", p.directory, err, out)
	}
	return program, nil
}

// outcome of the copies of one package.
type outcome struct {
	passed, failed int
	output         string // output of a copy that failed
}

// runCopies runs a test program that many times, several copies at once, with the numbers of processors that -test.cpu
// takes. It kills running copies when ctx ends, and counts them neither as passed nor as failed.
func runCopies(ctx context.Context, directory, program, processors string, runs int) outcome {
	var mu sync.Mutex
	var o outcome
	var running sync.WaitGroup
	places := make(chan struct{}, copies)
	for range runs {
		select {
		case places <- struct{}{}:
		case <-ctx.Done():
		}
		if ctx.Err() != nil {
			break
		}
		running.Go(func() {
			defer func() { <-places }()
			text, err := runCopy(ctx, directory, program, processors)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				o.passed++
			case ctx.Err() != nil: // probably killed
			default:
				o.failed++
				o.output = text + err.Error() + "\n"
			}
		})
	}
	running.Wait()
	return o
}

// runCopy runs a test program once, in a process group of its own.
func runCopy(ctx context.Context, directory, program, processors string) (string, error) {
	cmd := exec.CommandContext(ctx, "nice", "-n", "19", program, "-test.cpu="+processors,
		"-test.timeout=10m", "-test.paniconexit0")
	cmd.Dir = directory
	cmd.Env = append(os.Environ(), "PWD="+directory, "GORACE=atexit_sleep_ms=0")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	if errors.Is(err, exec.ErrWaitDelay) {
		err = nil // the test passed but left a process
	}
	return out.String(), err
}
