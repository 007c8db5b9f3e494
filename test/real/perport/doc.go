// Package perport tests the per-port mode of probes for a Dataplane that a user wrote, with Sonde's programs, a real
// Envoy, and the kubelet's own probing code.
package perport
