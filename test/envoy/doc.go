// Package envoy asks real Envoys of all supported versions what they think of the golden files in testdata.
package envoy
