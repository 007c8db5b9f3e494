// Package watchdog runs sonde-watchdog with a real API server. There are no kubelets and no controllers: tests renew
// the leases of nodes, and update the status of Deployments.
package watchdog

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
