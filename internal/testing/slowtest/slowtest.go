// Package slowtest decides which tests a run skips. A short run, `go test -short` after a line was changed, skips slow
// tests. All but the nightly run try only a few of a test's random schedules.
package slowtest

import (
	"flag"
	"fmt"
	"os"
	"strconv"
	"testing"
)

// Skip skips a test in a short run. why is the reason why it is slow.
func Skip(t testing.TB, why string) {
	t.Helper()
	if testing.Short() {
		t.Skip("skipped in a short run: " + why)
	}
}

// SkipAll skips all tests of a package in a short run, which then reports that the package has no tests to run.
// TestMain calls it before anything is built or started.
func SkipAll(m *testing.M, why string) {
	flag.Parse()
	if !testing.Short() {
		return
	}
	fmt.Fprintln(os.Stderr, "skipped in a short run:", why)
	set("test.run", "^$")
	os.Exit(m.Run())
}

// SeedsVariable is the environment variable with the number of random schedules per test: "all", a number, or few if
// unset.
const SeedsVariable = "SONDE_TEST_SEEDS"

// Rounds returns how often a test repeats with other random choices, seeded by the numbers from 0: few times, all
// times, or the number in SeedsVariable.
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

// Nightly skips a test unless SeedsVariable is set. why is the reason why it is slow.
func Nightly(t testing.TB, why string) {
	t.Helper()
	if !asksForMore() {
		t.Skipf("nightly, or with %s=all: %s", SeedsVariable, why)
	}
}

// asksForMore reports whether SeedsVariable requests more seeds than few.
func asksForMore() bool { return os.Getenv(SeedsVariable) != "" }

// AtOnce sets how many parallel tests of a package run at once, whatever the number of processors, since they mostly
// wait. TestMain calls it.
func AtOnce(tests int) {
	flag.Parse()
	set("test.parallel", strconv.Itoa(tests))
}

func set(name, value string) {
	if err := flag.Set(name, value); err != nil {
		panic("a flag of package testing: " + err.Error())
	}
}
