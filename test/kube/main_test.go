package kube

import (
	"os"
	"testing"

	"github.com/sonde-mesh/sonde/internal/slowtest"
)

// cluster is the one of all tests of this package.
var cluster *Cluster

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "a real API server")
	os.Exit(Run(m, &cluster))
}
