// Package mesh tests a whole mesh: the real programs, real Envoys, real connections.
package mesh
