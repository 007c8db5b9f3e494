package main

import (
	"errors"
	"os"
	"os/exec"
	"strconv"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	testscript.Main(leakTested{m}, map[string]func(){"sondectl": main})
}

// leakTested looks for goroutines that the tests of this process left.
type leakTested struct{ *testing.M }

func (l leakTested) Run() int {
	if code := l.M.Run(); code != 0 {
		return code
	}
	if err := goleak.Find(); err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		return 1
	}
	return 0
}

// TestFiles runs the commands that need no server.
func TestFiles(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/files",
		Cmds:                commands(),
		Condition:           envoyCondition,
		Setup:               func(env *testscript.Env) error { env.Setenv("ENVOY", os.Getenv("ENVOY")); return nil },
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
	})
}

func commands() map[string]func(*testscript.TestScript, bool, []string) {
	return map[string]func(*testscript.TestScript, bool, []string){"exits": exits}
}

// envoyCondition is [envoy]: $ENVOY names one.
func envoyCondition(name string) (bool, error) {
	if name != "envoy" {
		return false, errors.New("unknown condition " + name)
	}
	return os.Getenv("ENVOY") != "", nil
}

// exits runs sondectl and checks its exit code: exits CODE ARGS... Of a failure it also checks that stdout is empty, and
// that stderr ends with one line that says who failed.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: exits CODE ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec("sondectl", args[1:]...); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			ts.Fatalf("run sondectl: %v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
	if stdout := ts.ReadFile("stdout"); got != exitOK && got != exitUnfinished && stdout != "" {
		ts.Fatalf("it failed, and yet there is something on stdout")
	}
	if got != exitOK && !lastLineNamesUs(ts.ReadFile("stderr")) {
		ts.Fatalf("the last line on stderr must begin with sondectl: and end")
	}
}
