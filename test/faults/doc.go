// Package faults holds the tests of what may go wrong in a whole mesh, and of change under load: the real programs, real
// Envoys, real connections.
package faults
