package agent

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// sondeDP is the released program, and envoyPath the binary that it runs.
var sondeDP, envoyPath string

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "real agents and Envoys")
	slowtest.AtOnce(3)
	ctx, programs := context.Background(), ""
	envoys, err := harness.Envoys(ctx, "")
	if err == nil {
		envoyPath = envoys[0]
		programs, err = os.MkdirTemp("", "sonde-agent-")
	}
	if err == nil {
		sondeDP, err = harness.BuildInto(ctx, programs, "cmd/sonde-dp")
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(programs)
		os.Exit(code)
	}))
}
