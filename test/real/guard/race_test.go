//go:build race

package guard_test

// raceEnabled says that the race detector takes more memory than all the rest.
const raceEnabled = true
