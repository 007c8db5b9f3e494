// Package perport tests the per-port mode of probes for a Dataplane that somebody has written: the real programs, the real Envoy, and
// the kubelet's own code that asks.
package perport
