// Package mesh tests a whole mesh with Sonde's programs, real Envoys and real connections.
package mesh
