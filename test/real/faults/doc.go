// Package faults tests faults of a whole mesh, and changes under load, with real programs, Envoys and connections.
package faults
