// Package handshakes measures the control plane's cost of connections, with plain TLS as a floor. Client and server
// share the process.
//
//	make bench PKG=test/bench/handshakes TIME=1x
package handshakes
