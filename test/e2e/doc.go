// Package e2e tests Sonde on a real Kubernetes cluster: `make e2e` starts one, installs the chart and runs these tests on the network
// of node 1. They have the build tag e2e, so that `make test` leaves them out.
package e2e
