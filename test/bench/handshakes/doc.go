// Package handshakes measures what connections to the control plane cost it, with plain TLS as a floor. Client and server share the process.
//
//	make bench PKG=test/bench/handshakes TIME=1x
package handshakes
