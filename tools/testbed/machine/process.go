package machine

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// pollInterval is the interval of checks whether something has ended.
const pollInterval = 50 * time.Millisecond

// Process is a process on this machine.
type Process struct {
	PID int
	// Program is the base name of its binary.
	Program string
}

// Marked returns the processes whose initial environment has all these variables, written NAME=value. It finds them
// even if their parent has ended.
func Marked(variables ...string) ([]Process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []Process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		directory := filepath.Join("/proc", e.Name())
		environment, err := os.ReadFile(filepath.Join(directory, "environ"))
		if err != nil || !hasAll(environment, variables) {
			continue // the process has ended, or belongs to another user
		}
		program, err := os.Readlink(filepath.Join(directory, "exe"))
		if err != nil {
			continue // the process has just ended
		}
		found = append(found, Process{PID: pid, Program: filepath.Base(strings.TrimSuffix(program, " (deleted)"))})
	}
	return found, nil
}

func hasAll(environment []byte, variables []string) bool {
	set := map[string]bool{}
	for v := range bytes.SplitSeq(environment, []byte{0}) {
		set[string(v)] = true
	}
	for _, v := range variables {
		if !set[v] {
			return false
		}
	}
	return true
}

// KillAll kills the processes that find returns, and repeats until find returns none, since they may start others.
func KillAll(ctx context.Context, find func() ([]int, error)) error {
	for {
		pids, err := find()
		if err != nil {
			return err
		}
		if len(pids) == 0 {
			return nil
		}
		for _, pid := range pids {
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("kill process %d: %w", pid, err)
			}
		}
		if err := Pause(ctx); err != nil {
			return fmt.Errorf("wait for the end of processes %v: %w", pids, err)
		}
	}
}

// Pause waits for pollInterval. It returns an error when ctx ends.
func Pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollInterval):
		return nil
	}
}
