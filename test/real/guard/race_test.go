//go:build race

package guard_test

// raceEnabled is true because the race detector uses most of the memory.
const raceEnabled = true
