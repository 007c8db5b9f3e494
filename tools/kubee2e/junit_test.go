package main

import (
	"maps"
	"regexp"
	"testing"
)

// testReport has the format of ginkgo 2.28 for one or several processes.
const testReport = `<?xml version="1.0" encoding="UTF-8"?>
<testsuites tests="7" failures="3"><testsuite name="Kubernetes e2e suite">
  <testcase name="[SynchronizedBeforeSuite]" status="passed" time="1"></testcase>
  <testcase name="[AfterSuite]" status="failed" time="1"><failure message="x" type="failed">x</failure></testcase>
  <testcase name="[It] [sig-a] good" status="passed" time="1"><system-err>log</system-err></testcase>
  <testcase name="[It] [sig-a] bad (really) [Conformance]" status="failed" time="1"><failure message="x" type="failed">x</failure></testcase>
  <testcase name="[It] [sig-a] late" status="timedout" time="1"><error message="x" type="timedout">x</error></testcase>
  <testcase name="[It] [sig-a] unfit" status="skipped" time="1"><skipped message="skipped - no SSH"></skipped></testcase>
  <testcase name="[It] [sig-a] other" status="skipped" time="0"><skipped message="skipped"></skipped></testcase>
</testsuite></testsuites>`

func TestReadJUnit(t *testing.T) {
	got, err := readJUnit([]byte(testReport))
	if err != nil {
		t.Fatal(err)
	}
	want := results{
		"[AfterSuite]": failed, "[sig-a] good": passed, "[sig-a] bad (really) [Conformance]": failed, "[sig-a] late": failed, "[sig-a] unfit": skipped,
	}
	if !maps.Equal(got, want) {
		t.Errorf("readJUnit() = %v, want %v", got, want)
	}
	if _, err := readJUnit([]byte("<testsuites>")); err == nil {
		t.Error("readJUnit() of half a report: error = nil")
	}
}

// TestExactly checks that the pattern matches exactly the failed tests.
func TestExactly(t *testing.T) {
	pattern := regexp.MustCompile(exactly([]string{"[sig-a] bad (really)", "[sig-a] late"}))
	for name, want := range map[string]bool{
		"Kubernetes e2e suite [sig-a] bad (really)": true, "Kubernetes e2e suite [sig-a] late": true,
		"Kubernetes e2e suite [sig-a] later": false, "Kubernetes e2e suite [sig-a] bad really": false,
	} {
		if got := pattern.MatchString(name); got != want {
			t.Errorf("%q is run: %t, want %t", name, got, want)
		}
	}
}
