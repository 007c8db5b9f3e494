package main

import (
	"encoding/xml"
	"slices"
	"strings"
)

// outcome is the outcome of a test.
type outcome string

const (
	passed outcome = "passed"
	failed outcome = "failed"
	// skipped is the outcome of a test that skipped itself. Tests that were not selected have no outcome.
	skipped outcome = "skipped"
)

// results has the outcome of each test by its full name, and failed setup and teardown nodes of the suite.
type results map[string]outcome

// junit is a report of ginkgo (reporters/junit_report.go).
type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string `xml:"name,attr"`
			Status  string `xml:"status,attr"`
			Skipped struct {
				// Message is "skipped" for a test that was not selected, or the reason of a test that skipped itself.
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// testPrefix distinguishes a test from setup and teardown nodes.
const testPrefix = "[It] "

func readJUnit(text []byte) (results, error) {
	var report junit
	if err := xml.Unmarshal(text, &report); err != nil {
		return nil, err
	}
	all := results{}
	for _, suite := range report.Suites {
		for _, c := range suite.Cases {
			name, isTest := strings.CutPrefix(c.Name, testPrefix)
			switch {
			case c.Status == "pending" || c.Skipped.Message == "skipped":
			case c.Status == "skipped":
				all[name] = skipped
			case c.Status != "passed":
				all[name] = failed
			case isTest:
				all[name] = passed
			}
		}
	}
	return all, nil
}

// unexpected returns the failed tests that are not expected to fail, sorted.
func (r results) unexpected(expected map[string]bool) []string {
	var names []string
	for name, o := range r {
		if o == failed && !expected[name] {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}
