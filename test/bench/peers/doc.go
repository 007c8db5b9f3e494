// Package peers measures the cost of replicas of the control plane for each other, over gRPC with TLS in one
// process.
//
//	make bench PKG=test/bench/peers
package peers
