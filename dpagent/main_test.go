package dpagent_test

import (
	"fmt"
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/internal/slowtest"
)

// programs is the directory of programs that tests build.
var programs string

func TestMain(m *testing.M) {
	slowtest.AtOnce(6)
	var err error
	if programs, err = os.MkdirTemp("", "sonde-dpagent-"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		_ = os.RemoveAll(programs)
		os.Exit(code)
	}))
}
