// Package upgrade runs the programs of this release beside those of the one before, which the file previous names: agents of the one with control planes of the
// other, replicas of both, and what each writes read by the other.
package upgrade
