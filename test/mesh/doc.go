// Package mesh holds the tests of a whole mesh: the real programs, real Envoys, real connections.
package mesh
