package dashboard

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// programs are as released: what the page costs and how fast it is should be as for users.
var programs harness.Programs

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "a real browser and real Envoys")
	var err error
	if programs, err = harness.Build(context.Background(), false); err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
