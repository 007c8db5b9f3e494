package kube

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"
)

// Run runs the tests of a package with an API server for all of them, in *c, and returns the exit code.
func Run(m *testing.M, c **Cluster) int {
	begin := time.Now()
	started, err := Start(context.Background())
	if err != nil {
		fmt.Fprintln(os.Stderr, "start an API server:", err)
		return 1
	}
	fmt.Fprintln(os.Stderr, "API server started after", time.Since(begin).Round(time.Millisecond))
	*c = started
	code := m.Run()
	if err := started.Close(); err != nil {
		fmt.Fprintln(os.Stderr, "end the API server:", err)
		return 1
	}
	return code
}
