package mesh

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// programs are built with the race detector. envoys has an Envoy of each supported minor version.
var (
	programs harness.Programs
	envoys   []string
)

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "real control planes and Envoys")
	slowtest.AtOnce(6)
	var err error
	if programs, err = harness.Build(context.Background(), harness.Race); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	if envoys, err = harness.EnvoysOfTests(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "find the Envoys of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
