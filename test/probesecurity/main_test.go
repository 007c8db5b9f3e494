package probesecurity

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/test/harness"
)

// The programs: the agent as it is delivered, and one that floods it.
var agentProgram, flooderProgram string

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	bin, err := os.MkdirTemp("", "sonde-")
	if err == nil {
		defer func() { _ = os.RemoveAll(bin) }() // it is a temporary directory
		err = build(context.Background(), bin)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		return 1
	}
	code := m.Run()
	if err := goleak.Find(); code == 0 && err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func build(ctx context.Context, bin string) error {
	root, err := harness.Root()
	if err != nil {
		return err
	}
	agentProgram, flooderProgram = filepath.Join(bin, "sonde-dp"), filepath.Join(bin, "flooder")
	for directory, b := range map[string]struct{ program, path string }{
		root:                        {agentProgram, "./cmd/sonde-dp"},
		filepath.Join(root, "test"): {flooderProgram, "./probesecurity/flooder"},
	} {
		// as the Makefile does
		cmd := exec.CommandContext(ctx, "go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", b.program, b.path)
		cmd.Dir = directory
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("go build %s: %w\n%s", b.path, err, out)
		}
	}
	return nil
}
