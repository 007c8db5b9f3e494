//go:build race

package harness

// Race says whether the tests run with the race detector; the programs are built the same way.
const Race = true
