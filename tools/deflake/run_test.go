package main

import (
	"bytes"
	"context"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// envRole makes the test program play a role.
const envRole = "TEST_DEFLAKE_ROLE"

func TestMain(m *testing.M) {
	switch os.Getenv(envRole) {
	case "":
		os.Exit(m.Run())
	case "pass":
	case "fail":
		_, _ = os.Stdout.WriteString("what is wrong\n")
		os.Exit(3)
	case "turns": // one of all fails
		if err := os.Mkdir(os.Getenv(envRole+"_TURN"), 0o700); err == nil {
			_, _ = os.Stdout.WriteString("the first one fails\n")
			os.Exit(1)
		}
	case "hang": // says so to its parent
		signals := make(chan os.Signal, 1)
		signal.Notify(signals, syscall.SIGTERM)
		_ = syscall.Kill(os.Getppid(), syscall.SIGUSR1)
		<-signals
	}
}

// runRole runs copies of this program in a role.
func runRole(ctx context.Context, t *testing.T, role string, runs int) outcome {
	t.Helper()
	t.Setenv(envRole, role)
	t.Setenv(envRole+"_TURN", t.TempDir()+"/turn")
	return runCopies(ctx, t.TempDir(), os.Args[0], "1,4", runs)
}

func TestRunCopies(t *testing.T) {
	for role, want := range map[string]outcome{
		"pass":  {passed: 9},
		"fail":  {failed: 9, output: "what is wrong\nexit status 3\n"},
		"turns": {passed: 8, failed: 1, output: "the first one fails\nexit status 1\n"},
	} {
		t.Run(role, func(t *testing.T) {
			if got := runRole(t.Context(), t, role, 9); got != want {
				t.Errorf("runCopies() = %+v, want %+v", got, want)
			}
		})
	}
}

func TestCopiesEndWithTheContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	hangs := make(chan os.Signal, 1)
	signal.Notify(hangs, syscall.SIGUSR1)
	defer signal.Stop(hangs)
	go func() {
		<-hangs
		cancel()
	}()
	if got := runRole(ctx, t, "hang", 3); got != (outcome{}) {
		t.Errorf("runCopies() = %+v, want that none counts", got)
	}
}

func TestReport(t *testing.T) {
	t.Setenv(envRole, "fail")
	var out bytes.Buffer
	d := &deflaker{repository: &repository{root: t.TempDir()}, out: &out, runs: 2}
	p := &pkg{directory: "."}
	err := d.runAll(t.Context(), []*pkg{p}, map[*pkg]string{p: os.Args[0]}, "1", 0)
	if err == nil || err.Error() != "flaky or broken: ." {
		t.Errorf("runAll() = %v", err)
	}
	for _, want := range []string{"--- one of the copies of . that failed\nwhat is wrong\nexit status 3\n---\n", ".: 0 of 2 copies passed, 2 failed, 0 not ended, in "} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output\n%s\nwant %q", &out, want)
		}
	}
}

func TestNoTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		d := &deflaker{repository: &repository{root: "/"}, out: &out, runs: 2}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		time.Sleep(time.Minute)
		err := d.runAll(ctx, graph([3]string{"a"}, [3]string{"b"}), nil, "1", limit)
		if err != nil || out.String() != "left out, not started within 2m0s: a b\n" {
			t.Errorf("runAll() = %v, output %q", err, &out)
		}
	})
}
