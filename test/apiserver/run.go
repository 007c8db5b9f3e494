package apiserver

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

const (
	// shards is how many API servers the tests of a package share. The tests mostly wait, and tests of one API server
	// cannot run in parallel, because they write cluster-scoped objects.
	shards = 4
	// shardVariable marks a process as a shard.
	shardVariable = "SONDE_TEST_SHARD"
)

// Run runs the tests of a package with a common API server in *c, and returns the exit code. It distributes many
// tests over four processes, with an API server each.
func Run(m *testing.M, c **Cluster) int {
	flag.Parse()
	if os.Getenv(shardVariable) == "" {
		tests, err := selected(flag.Lookup("test.run").Value.String())
		if err != nil {
			fmt.Fprintln(os.Stderr, "list the tests:", err)
			return 1
		}
		if len(tests) > shards {
			return runShards(tests)
		}
	}
	begin := time.Now()
	started, err := Start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "start an API server:", err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "API server started after", time.Since(begin).Round(time.Millisecond))
	*c = started
	code := m.Run()
	if err := started.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "end the API server:", err)
		return 1
	}
	return code
}

// selected returns the tests that match a -test.run, or none if it selects subtests or if benchmarks or listings
// are requested.
func selected(pattern string) ([]string, error) {
	if strings.Contains(pattern, "/") || flag.Lookup("test.bench").Value.String() != "" ||
		flag.Lookup("test.list").Value.String() != "" {
		return nil, nil
	}
	if pattern == "" {
		pattern = "^Test"
	}
	out, err := exec.Command(os.Args[0], "-test.list="+pattern).Output() //nolint:noctx // it lists
	if err != nil {
		return nil, err
	}
	var tests []string
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "Test") {
			tests = append(tests, strings.TrimSpace(line))
		}
	}
	return tests, nil
}

// runShards distributes tests over processes. It prints a process's output when the process ends, or line by line in
// a verbose run.
func runShards(tests []string) int {
	of := make([][]string, shards)
	for i, test := range tests {
		of[i%shards] = append(of[i%shards], test)
	}
	out := &lines{to: os.Stdout}
	failed := make([]error, shards)
	var running sync.WaitGroup
	for i, tests := range of {
		running.Go(func() { failed[i] = runShard(i, tests, out) })
	}
	running.Wait()
	if errors.Join(failed...) != nil {
		return 1
	}
	return 0
}

func runShard(number int, tests []string, out *lines) error {
	runtime.LockOSThread() // the shard ends with the thread that started it
	defer runtime.UnlockOSThread()
	args := slices.DeleteFunc(slices.Clone(os.Args[1:]), func(arg string) bool {
		return strings.HasPrefix(arg, "-test.testlogfile=")
	})
	args = append(args, "-test.run=^("+strings.Join(tests, "|")+")$")
	cmd := exec.Command(os.Args[0], args...) //nolint:noctx // it has the timeout of go test
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", shardVariable, number))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	own := &shard{lines: out, verbose: flag.Lookup("test.v").Value.String() != "false"}
	cmd.Stdout, cmd.Stderr = own, own
	err := cmd.Run()
	own.flush()
	return err
}

// lines writes whole lines of several writers.
type lines struct {
	mu sync.Mutex
	to io.Writer
}

// shard buffers a process's output until a line is complete, or until the process ends.
type shard struct {
	*lines
	verbose bool
	rest    []byte
}

// Write implements io.Writer.
func (s *shard) Write(p []byte) (int, error) {
	s.rest = append(s.rest, p...)
	if end := bytes.LastIndexByte(s.rest, '\n') + 1; s.verbose && end > 0 {
		s.write(s.rest[:end])
		s.rest = append(s.rest[:0], s.rest[end:]...)
	}
	return len(p), nil
}

func (s *shard) flush() { s.write(s.rest) }

func (s *shard) write(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	_, _ = s.to.Write(p)
}
