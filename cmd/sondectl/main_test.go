package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
)

func TestMain(m *testing.M) {
	testscript.Main(leakTested{m}, map[string]func(){"sondectl": main})
}

// leakTested checks that the tests of this process leave no goroutines.
type leakTested struct{ *testing.M }

func (l leakTested) Run() int {
	// No test reads the contexts and the kubeconfig of whoever runs it.
	for _, variable := range []string{"XDG_CONFIG_HOME", "KUBECONFIG"} {
		if err := os.Setenv(variable, "/nowhere"); err != nil {
			panic(err)
		}
	}
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
	testscript.RunT(inOrder{t}, testscript.Params{
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

// envoyCondition is the condition [envoy]: $ENVOY is set.
func envoyCondition(name string) (bool, error) {
	if name != "envoy" {
		return false, errors.New("unknown condition " + name)
	}
	return os.Getenv("ENVOY") != "", nil
}

// exits runs sondectl and checks its exit code: exits CODE [<FILE] ARGS... If sondectl fails, stdout must be empty and stderr
// must end with one line that names sondectl. It runs in this process: with the race detector a new one costs 100 times as
// much.
func exits(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: exits CODE [<FILE] ARGS...")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	args = args[1:]
	stdin := ""
	if len(args) > 0 && strings.HasPrefix(args[0], "<") {
		stdin, args = ts.ReadFile(args[0][1:]), args[1:]
	}
	before, err := os.Getwd()
	ts.Check(err)
	ts.Check(os.Chdir(ts.MkAbs(".")))
	defer func() { ts.Check(os.Chdir(before)) }()
	var stdout, stderr bytes.Buffer
	got := run(context.Background(), args, strings.NewReader(stdin), &stdout, &stderr)
	_, _ = ts.Stdout().Write(stdout.Bytes())
	_, _ = ts.Stderr().Write(stderr.Bytes())
	if got != want {
		ts.Fatalf("exit code %d, want %d", got, want)
	}
	report := got == exit.Failed && slices.Contains(args, "validate") && slices.Contains(args, "-o")
	if !report && slices.Contains([]int{exit.Failed, exit.Usage, exit.Unreachable}, got) && stdout.Len() > 0 {
		ts.Fatalf("it failed, and yet there is something on stdout")
	}
	if got != exit.OK && !lastLineNamesUs(stderr.String()) {
		ts.Fatalf("the last line on stderr must begin with sondectl: and end")
	}
}

func lastLineNamesUs(stderr string) bool {
	lines := strings.Split(strings.TrimSuffix(stderr, "\n"), "\n")
	return strings.HasSuffix(stderr, "\n") && strings.HasPrefix(lines[len(lines)-1], "sondectl: ")
}

// inOrder runs scripts one after the other: they share the working directory of this process.
type inOrder struct{ *testing.T }

// Parallel implements testscript.T.
func (inOrder) Parallel() {}

// Run implements testscript.T.
func (i inOrder) Run(name string, f func(testscript.T)) {
	i.T.Run(name, func(t *testing.T) { f(inOrder{t}) })
}

// Verbose implements testscript.T.
func (inOrder) Verbose() bool { return testing.Verbose() }
