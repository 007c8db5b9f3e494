package hostile

import (
	"context"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// programs are built without the race detector, which multiplies the memory. envoys has an Envoy of each supported
// minor version.
var (
	programs harness.Programs
	envoys   []string
)

func TestMain(m *testing.M) {
	flag.Parse()
	if text, ok := os.LookupEnv(attackersVariable); ok {
		if err := attackers(text); err != nil {
			fmt.Fprintln(os.Stderr, "attack:", err)
			os.Exit(1)
		}
		return
	}
	slowtest.SkipAll(m, "attacks on real control planes and Envoys")
	var err error
	if programs, err = harness.Build(context.Background(), false); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	if envoys, err = harness.EnvoysOfTests(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "find the Envoys of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
