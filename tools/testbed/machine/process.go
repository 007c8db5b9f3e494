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

// pollInterval is the pause between two looks at something that ends by itself.
const pollInterval = 50 * time.Millisecond

// Process is a process of this machine.
type Process struct {
	PID int
	// Program is the base name of its binary.
	Program string
}

// Marked returns the processes that have all these variables, written NAME=value, in the environment with which they were started. They
// are found even if the process that started them has ended.
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
			continue // it has ended, or is none of ours
		}
		program, err := os.Readlink(filepath.Join(directory, "exe"))
		if err != nil {
			continue // it has just ended
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

// KillAll kills the processes that find returns until it returns none, since they may start others meanwhile.
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

// Pause waits a moment, for the next look at something. It returns an error when ctx ends.
func Pause(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(pollInterval):
		return nil
	}
}
