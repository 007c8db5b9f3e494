package faults

import (
	"context"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/harness"
)

// programs are built with the race detector. Tests with other programs build them.
var programs harness.Programs

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "real control planes and Envoys")
	slowtest.AtOnce(6)
	// Otherwise a program with the race detector, such as sondectl, sleeps for a second before it
	// exits.
	err := os.Setenv("GORACE", "atexit_sleep_ms=0")
	if err == nil {
		programs, err = harness.Build(context.Background(), harness.Race)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
