package kube

import (
	"os"
	"testing"

	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/test/apiserver"
)

// cluster is shared by all tests of this package.
var cluster *apiserver.Cluster

func TestMain(m *testing.M) {
	slowtest.SkipAll(m, "a real API server")
	os.Exit(apiserver.Run(m, &cluster))
}
