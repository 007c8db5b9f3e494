// Package envoy checks that the Envoys of all supported versions accept the golden files in testdata.
package envoy
