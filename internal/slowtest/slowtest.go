// Package slowtest says what a short run leaves out: `go test -short`, after a line was changed. No other run leaves anything out.
package slowtest

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// Skip leaves a test out of a short run. why says what takes its time.
func Skip(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("left out of a short run: " + why)
	}
}

// SkipAll leaves all tests of a package out of a short run, which then says of the package that it has no tests to run. It is called by
// TestMain before anything is built or started.
func SkipAll(m *testing.M, why string) {
	flag.Parse()
	if !testing.Short() {
		return
	}
	fmt.Fprintln(os.Stderr, "left out of a short run:", why)
	set("test.run", "^$")
	os.Exit(m.Run())
}

// Rounds returns how often a test repeats what it does with other random choices: all times, or few times in a short run.
func Rounds(all, few int) int {
	if testing.Short() {
		return min(all, few)
	}
	return all
}

// AtOnce is how many parallel tests of a package run at once, whatever the number of processors: they mostly wait. It is called by
// TestMain.
func AtOnce(tests int) {
	flag.Parse()
	set("test.parallel", strconv.Itoa(tests))
}

func set(name, value string) {
	if err := flag.Set(name, value); err != nil {
		panic("a flag of package testing: " + err.Error())
	}
}
