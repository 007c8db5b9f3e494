// Package envoy checks that real Envoys of all supported versions accept the golden files in testdata.
package envoy
