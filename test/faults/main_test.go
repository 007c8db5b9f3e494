package faults

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/test/harness"
)

// meshes is how many tests run at once: they wait more than they work.
const meshes = "3"

// programs are those of every test but where it says otherwise, built with the race detector.
var programs harness.Programs

func TestMain(m *testing.M) {
	flag.Parse()
	// A program with the race detector would wait for a second at its end, each call of sondectl too.
	err := errors.Join(flag.Set("test.parallel", meshes), os.Setenv("GORACE", "atexit_sleep_ms=0"))
	if err == nil {
		programs, err = harness.Build(context.Background(), true)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "build the programs of the tests:", err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m)
}
