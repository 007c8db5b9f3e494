package probesecurity

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// The programs: the released agent, and a program that floods it.
var agentProgram, flooderProgram string

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "floods of real agents")
	os.Exit(run(m))
}

func run(m *testing.M) int {
	bin, err := os.MkdirTemp("", "sonde-")
	if err == nil {
		defer func() { _ = os.RemoveAll(bin) }() // a temporary directory
		agentProgram, err = harness.BuildInto(context.Background(), bin, "cmd/sonde-dp")
	}
	if err == nil {
		flooderProgram, err = harness.BuildInto(context.Background(), bin, "test/real/probesecurity/flooder")
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
