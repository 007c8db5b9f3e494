// Package slowtest says what a run of tests leaves out: a short run, `go test -short` after a line was changed, leaves out slow tests, and all but the
// nightly run play few of the random schedules of a test.
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

// SeedsVariable is the environment variable that says how many random schedules each test plays: "all", a number, or few if it is not set.
const SeedsVariable = "SONDE_TEST_SEEDS"

// Rounds returns how often a test repeats what it does with other random choices, whose seeds are the numbers below that: few times, or all times or as often
// as SeedsVariable says.
func Rounds(all, few int) int {
	switch says := os.Getenv(SeedsVariable); says {
	case "":
		return min(all, few)
	case "all":
		return all
	default:
		n, err := strconv.Atoi(says)
		if err != nil || n < 1 {
			panic(fmt.Sprintf("%s=%q: must be all, or a positive number", SeedsVariable, says))
		}
		return n
	}
}

// Nightly skips a test unless SeedsVariable is set. why is what takes its time.
func Nightly(t testing.TB, why string) {
	t.Helper()
	if !asksForMore() {
		t.Skipf("nightly, or with %s=all: %s", SeedsVariable, why)
	}
}

// asksForMore reports whether SeedsVariable asks for more than few seeds.
func asksForMore() bool { return os.Getenv(SeedsVariable) != "" }

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
