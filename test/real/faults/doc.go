// Package faults tests faults of a whole mesh, and changes under load: the real programs, real Envoys, real connections.
package faults
