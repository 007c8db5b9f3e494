// Package probesecurity attacks the virtual port of the real `sonde-dp probes`, its guard included.
package probesecurity
