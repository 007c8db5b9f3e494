package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/harness"
)

// TestDemo runs the demo: each of its steps is checked. Then it follows the hints in bash: two faults, and their
// repair.
func TestDemo(t *testing.T) {
	slowtest.Skip(t, "real Envoys run")
	ctx, interrupt := context.WithCancel(wait.Context(t))
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = out.Close() }()
	printed := func() string {
		text, err := os.ReadFile(out.Name())
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	ended := make(chan error, 1)
	go func() { ended <- run(ctx, []string{"--keep"}, out) }()
	defer func() {
		interrupt()
		if err := <-ended; err != nil {
			t.Errorf("%v\n%s", err, printed())
		}
	}()
	err = harness.Poll(ctx, "the hints", func(context.Context) error {
		if len(ended) > 0 || strings.Contains(printed(), "\nMore to look at: ") {
			return nil
		}
		return fmt.Errorf("it has printed %d bytes", len(printed()))
	})
	if err != nil || len(ended) > 0 {
		t.Fatal("the demo has printed no hints: ", err)
	}
	s := shell{t: t, hints: printed()}
	s.finds(ctx, `^ok: `, "sondectl status")
	s.run(ctx, s.line("kill "))
	s.finds(ctx, `application probe failed: .* connection refused`, s.line("sondectl why "))
	s.finds(ctx, `"instance":"b-[23]"`, s.line("curl "))
	app := s.start(ctx, strings.TrimSuffix(s.line("test-app "), " &"))
	defer app()
	s.finds(ctx, `^ok: `, "sondectl status")
	s.run(ctx, s.line("echo "))
	s.finds(ctx, `bad.yaml, document 1, line 1: `, "sondectl status")
	s.run(ctx, s.line("rm "))
	s.finds(ctx, `^ok: `, "sondectl status")
}

// shell runs commands of the hints.
type shell struct {
	t     *testing.T
	hints string
}

// line returns the first command with a prefix.
func (s shell) line(prefix string) string {
	s.t.Helper()
	match := regexp.MustCompile(`(?m)^  (` + prefix + `.*)$`).FindStringSubmatch(s.hints)
	if match == nil {
		s.t.Fatalf("no hint begins with %s", prefix)
	}
	return match[1]
}

// command returns a command of bash with the variables of the hints.
func (s shell) command(ctx context.Context, line string) *exec.Cmd {
	var exports strings.Builder
	for _, match := range regexp.MustCompile(`(?m)^  (export .*\n)`).FindAllStringSubmatch(s.hints, -1) {
		exports.WriteString(match[1])
	}
	return exec.CommandContext(ctx, "bash", "-c", exports.String()+line)
}

func (s shell) run(ctx context.Context, line string) {
	s.t.Helper()
	if text, err := s.command(ctx, line).CombinedOutput(); err != nil {
		s.t.Errorf("%s: %v\n%s", line, err, text)
	}
}

// start starts a program, which stop ends.
func (s shell) start(ctx context.Context, line string) (stop func()) {
	s.t.Helper()
	cmd := s.command(ctx, "exec "+line)
	if err := cmd.Start(); err != nil {
		s.t.Fatal(err)
	}
	return func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait() // the error is that it was killed
	}
}

// finds repeats a command until its output matches.
func (s shell) finds(ctx context.Context, want, line string) {
	s.t.Helper()
	err := harness.Poll(ctx, line+" to print "+want, func(ctx context.Context) error {
		text, _ := s.command(ctx, line).CombinedOutput() // the text says what the error would
		if !regexp.MustCompile(`(?m)` + want).Match(text) {
			return fmt.Errorf("it prints:\n%s", text)
		}
		return nil
	})
	if err != nil {
		s.t.Error(err)
	}
}
