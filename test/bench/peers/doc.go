// Package peers measures what replicas of the control plane cost each other, over gRPC with TLS in one process.
//
//	make bench PKG=test/bench/peers
package peers
