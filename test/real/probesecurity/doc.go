// Package probesecurity attacks the virtual port of the real `sonde-dp probes`, including its
// guard.
package probesecurity
