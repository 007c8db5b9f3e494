package kube

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/slowtest"
)

// cluster is the one of all tests of this package.
var cluster *Cluster

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "a real API server")
	os.Exit(run(m))
}

func run(m *testing.M) int {
	begin := time.Now()
	var err error
	if cluster, err = Start(context.Background()); err != nil {
		fmt.Fprintln(os.Stderr, "start an API server:", err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "API server started after", time.Since(begin).Round(time.Millisecond))
	code := m.Run()
	if err := cluster.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "end the API server:", err)
		return 1
	}
	return code
}
