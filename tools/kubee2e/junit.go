package main

import (
	"encoding/xml"
	"slices"
	"strings"
)

// outcome is how a test ended.
type outcome string

const (
	passed outcome = "passed"
	failed outcome = "failed"
	// skipped is of a test that has decided to skip itself: one that was not chosen has no outcome.
	skipped outcome = "skipped"
)

// results has the outcome of each test, by its full name, and of the parts of the suite around them that failed.
type results map[string]outcome

// junit is a report as ginkgo writes it (reporters/junit_report.go).
type junit struct {
	Suites []struct {
		Cases []struct {
			Name    string `xml:"name,attr"`
			Status  string `xml:"status,attr"`
			Skipped struct {
				// Message is "skipped" for a test that was not chosen, and has the reason of one that has skipped itself.
				Message string `xml:"message,attr"`
			} `xml:"skipped"`
		} `xml:"testcase"`
	} `xml:"testsuite"`
}

// testPrefix marks a test, and tells it from what runs before and after all.
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

// unexpected returns the tests that failed and are not among the expected, sorted.
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
