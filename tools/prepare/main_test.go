package main

import (
	"bytes"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// fakeGo is a fake go command that records its arguments.
const fakeGo = `#!/bin/sh
echo "$(basename "$PWD") $GOMAXPROCS go $*" >>"$FAKE_LOG"
case "$*" in
$FAKE_FAILS) echo "# example.com/broken" >&2; echo "broken.go:1:2: undefined: x" >&2; exit 1 ;;
"list -export"*) echo example.com/a >&2; echo example.com/b >&2 ;;
list*) echo "go: downloading example.com/a v1.0.0" >&2; echo "go: downloading example.com/b v1.0.0" >&2; printf 'a\nb\nc\n' ;;
build*) echo example.com/a >&2; echo "go: downloading example.com/late v1.0.0" >&2 ;;
"run ./envoy"*) echo "getting Envoy 1.40.0 (once)" >&2; echo /cache/envoy ;;
esac
`

// prepare runs the program in a repository with modules and a fake go command, which fails for arguments that match
// fails. It returns the calls of go, each as directory, GOMAXPROCS and arguments.
func prepare(t *testing.T, fails string, args ...string) (calls []string, stdout, stderr string, err error) {
	t.Helper()
	root, bin := filepath.Join(t.TempDir(), "top"), t.TempDir()
	for _, module := range []string{"test", "tools"} {
		if err := os.MkdirAll(filepath.Join(root, module), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(bin, "go"), []byte(fakeGo), 0o700); err != nil {
		t.Fatal(err)
	}
	log := filepath.Join(bin, "log")
	t.Setenv("PATH", bin+":/usr/bin:/bin")
	t.Setenv("FAKE_LOG", log)
	t.Setenv("FAKE_FAILS", fails)
	t.Setenv("GOMAXPROCS", "2")
	var out, progress bytes.Buffer
	err = run(t.Context(), append([]string{"-root=" + root}, args...), &out, &progress)
	data, _ := os.ReadFile(log) // missing without calls
	text := strings.ReplaceAll(string(data), root, "ROOT")
	return slices.DeleteFunc(strings.Split(text, "\n"), func(line string) bool { return line == "" }), out.String(), progress.String(), err
}

// wantLines checks the lines of progress, in any order and with any times.
func wantLines(t *testing.T, progress string, want ...string) {
	t.Helper()
	got := strings.Split(strings.TrimSpace(regexp.MustCompile(`(?m)^\[ *\d+ s\] `).ReplaceAllString(progress, "")), "\n")
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		t.Errorf("progress\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestDemo(t *testing.T) {
	calls, stdout, stderr, err := prepare(t, "-", "-vcs", "-tags=grpcnotrace,kubelet", "demo")
	if err != nil || stdout != "/cache/envoy\n" {
		t.Errorf("run() = %v, output %q", err, stdout)
	}
	wantLines(t, stderr, "getting Envoy 1.40.0 (once)", "get Envoy, done", "download modules of the main module: 2 modules, done", "download modules of test/: 2 modules, done",
		"compile the standard library: 1 packages, done", "build sonde-cp, sonde-dp and sondectl: 1 packages, done", "build the application: 1 packages, done", "build the demo: 1 packages, done")
	if i := slices.Index(calls, "tools 2 go run ./envoy"); i < 0 || i > 3 {
		t.Errorf("Envoy is call %d, want it while modules are downloaded: %q", i, calls)
	}
	calls = slices.DeleteFunc(calls, func(c string) bool { return strings.HasPrefix(c, "tools ") })
	slices.Sort(calls[:3])
	for i, want := range []string{
		"test 16 go list -deps -tags grpcnotrace,kubelet ./app ./demo",
		"top 16 go list -deps ./cmd/sonde-cp ./cmd/sonde-dp ./cmd/sondectl",
		"top 2 go build -v net/http/httputil html/template encoding/xml log/slog os/exec",
		"top 2 go build -v -ldflags -s -w -buildvcs=true -o ROOT/bin/ ./cmd/sonde-cp ./cmd/sonde-dp ./cmd/sondectl",
		"test 2 go build -v -ldflags -s -w -buildvcs=true -o ROOT/bin/test-app ./app",
		"test 2 go build -v -ldflags -s -w -buildvcs=true -tags grpcnotrace,kubelet -o ROOT/bin/demo ./demo",
	} {
		if i >= len(calls) || calls[i] != want {
			t.Fatalf("calls of Go\n%s\nwant in line %d\n%s", strings.Join(calls, "\n"), i, want)
		}
	}
}

func TestTests(t *testing.T) {
	calls, stdout, stderr, err := prepare(t, "-", "-race", "test", ".", "test")
	if err != nil || stdout != "/cache/envoy\n" {
		t.Errorf("run() = %v, output %q", err, stdout)
	}
	wantLines(t, stderr, "getting Envoy 1.40.0 (once)", "get Envoy, done", "download modules of the main module: 2 modules, done", "download modules of test/: 2 modules, done",
		"compile tests of the main module: 2 packages, done", "compile tests of test/: 2 packages, done")
	for _, want := range []string{
		"top 16 go list -deps -test -race ./...", "test 16 go list -deps -test -race ./...",
		"top 2 go list -export -v -deps -test -race ./...", "test 2 go list -export -v -deps -test -race ./...",
	} {
		if !slices.Contains(calls, want) {
			t.Errorf("calls of Go\n%s\nwant\n%s", strings.Join(calls, "\n"), want)
		}
	}
}

func TestFailures(t *testing.T) {
	for fails, want := range map[string]string{
		"build*-o*":   "go build -v -ldflags -s -w -o",
		"run*":        "go run ./envoy in",
		"list*./demo": "go list -deps ./app ./demo in",
	} {
		_, stdout, _, err := prepare(t, fails, "demo")
		if err == nil || !strings.HasPrefix(err.Error(), want) || !strings.HasSuffix(err.Error(), "# example.com/broken\nbroken.go:1:2: undefined: x\n") || stdout != "" {
			t.Errorf("run() with a failing %s = %v, output %q, want the error of %s", fails, err, stdout, want)
		}
	}
}

func TestInvalidArguments(t *testing.T) {
	for _, args := range [][]string{{}, {"neither"}, {"demo", "test"}} {
		if calls, _, stderr, err := prepare(t, "-", args...); err == nil || !strings.Contains(stderr, "usage: prepare") || len(calls) > 0 {
			t.Errorf("run(%q) = %v, want the usage", args, err)
		}
	}
}

func TestLinesOfSteps(t *testing.T) {
	for want, s := range map[string]step{
		"get Envoy":                  {name: "get Envoy"},
		"build x":                    {name: "build x", unit: "packages", all: 900},
		"build x: 5 of 900 packages": {name: "build x", unit: "packages", all: 900, done: 5},
		"download y: 3 modules":      {name: "download y", unit: "modules", done: 3},
	} {
		if got := s.String(); got != want {
			t.Errorf("String() = %q, want %q", got, want)
		}
	}
	var out bytes.Buffer
	p := &progress{out: &out, began: time.Now().Add(-12 * time.Second)}
	p.say("text")
	if out.String() != "[ 12 s] text\n" {
		t.Errorf("say() writes %q", &out)
	}
}
