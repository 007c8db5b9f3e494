package main

import (
	"bytes"
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/rogpeppe/go-internal/testscript"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/cmd/sondectl/exit"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

func TestMain(m *testing.M) {
	if err := os.Setenv("KUBECONFIG", "/nowhere"); err != nil { // no test reads the developer's own kubeconfig
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// on returns the program for a host of a network.
func on(n *virtual.Network) *cli { return &cli{dial: n.DialFrom("127.0.0.1")} }

// TestFiles runs the commands that need no server.
func TestFiles(t *testing.T) {
	runScripts(t, "testdata/files", func(env *testscript.Env) error {
		env.Values[networkKey{}] = virtual.NewNetwork()
		return nil
	})
}

// networkKey is the key of the network of a script.
type networkKey struct{}

// runScripts runs each script of a directory in a bubble.
func runScripts(t *testing.T, directory string, setup func(*testscript.Env) error) {
	t.Helper()
	testscript.RunT(inOrder{t}, testscript.Params{
		Dir: directory, Setup: setup, RequireUniqueNames: true,
		Cmds: map[string]func(*testscript.TestScript, bool, []string){"exits": exits, "setenv": setenv, "concat": concat},
	})
}

// setenv sets a variable of this process until the end of the script: setenv NAME=VALUE.
func setenv(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 1 {
		ts.Fatalf("usage: setenv NAME=VALUE")
	}
	name, value, _ := strings.Cut(args[0], "=")
	before, ok := os.LookupEnv(name)
	ts.Check(os.Setenv(name, value))
	ts.Defer(func() {
		if err := os.Unsetenv(name); err == nil && ok {
			_ = os.Setenv(name, before)
		}
	})
}

// concat writes files into one: concat TO FILES...
func concat(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 {
		ts.Fatalf("usage: concat TO FILES...")
	}
	var all strings.Builder
	for _, file := range args[1:] {
		all.WriteString(ts.ReadFile(file))
	}
	ts.Check(os.WriteFile(ts.MkAbs(args[0]), []byte(all.String()), 0o600))
}

// exits runs sondectl and checks its exit code: exits CODE [<FILE] ARGS... If sondectl fails, stdout must be empty and
// stderr must end with one line that names sondectl.
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
	n := ts.Value(networkKey{}).(*virtual.Network)
	got := on(n).run(context.Background(), args, strings.NewReader(stdin), &stdout, &stderr)
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

// inOrder runs scripts one after the other, since they share the process's working directory.
type inOrder struct{ *testing.T }

// Parallel implements testscript.T.
func (inOrder) Parallel() {}

// Run implements testscript.T.
func (i inOrder) Run(name string, f func(testscript.T)) {
	i.T.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) { f(inOrder{t}) })
	})
}

// Verbose implements testscript.T.
func (inOrder) Verbose() bool { return testing.Verbose() }
