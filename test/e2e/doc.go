// Package e2e tests Sonde on a real Kubernetes cluster: `make e2e` starts a cluster, installs the chart and runs
// these tests on the network of node 1. They have the build tag e2e, so that `make test` omits them.
package e2e
