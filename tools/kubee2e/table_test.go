package main

import (
	"slices"
	"strings"
	"testing"
)

const testTable = `
mesh:
- {reason: the mesh, tests: [a, b]}
cluster:
- {reason: the test bed, tests: [c]}
`

// TestKnown reads the actual table.
func TestKnown(t *testing.T) {
	known, err := readTable(knownText)
	if err != nil {
		t.Fatal(err)
	}
	for test := range known.expected(true) {
		if !strings.HasPrefix(test, "[sig-") {
			t.Errorf("%q is not the full name of a test", test)
		}
	}
}

func TestReadTableFaults(t *testing.T) {
	tests := map[string]struct{ text, want string }{
		"no reason":   {"mesh: [{tests: [a]}]", "mesh[0] lacks a reason or tests"},
		"no tests":    {"cluster: [{reason: x}]", "cluster[0] lacks a reason or tests"},
		"twice":       {"mesh: [{reason: x, tests: [a]}]\ncluster: [{reason: y, tests: [a]}]", `"a": duplicate test`},
		"unknown key": {"meshes: []", `unknown field "meshes"`},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := readTable([]byte(tc.text)); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("readTable() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestCompare(t *testing.T) {
	tests := map[string]struct {
		results results
		outside bool // of the mesh
		part    bool // not a complete run
		want    []string
	}{
		"as the table says": {results: results{"a": failed, "b": failed, "c": failed, "d": passed, "e": skipped}},
		"without the mesh":  {results: results{"a": passed, "b": passed, "c": failed}, outside: true},
		"fails":             {results: results{"a": failed, "b": failed, "c": failed, "d": failed}, want: []string{"fails, and is not in the table: d"}},
		"passes":            {results: results{"a": passed, "b": failed, "c": failed}, want: []string{"passes, although the table lists it as a failure: a"}},
		"fails without the mesh": {
			results: results{"a": failed, "b": passed, "c": failed}, outside: true,
			want: []string{"fails without the mesh, although the table lists it as a failure of the mesh: a"},
		},
		"passes on the test bed": {
			results: results{"a": passed, "b": passed, "c": passed}, outside: true, want: []string{"passes, although the table lists it as a failure: c"},
		},
		"did not run":           {results: results{"a": failed, "b": skipped}, want: []string{"is in the table and did not run: b", "is in the table and did not run: c"}},
		"was not meant to run":  {results: results{"a": failed}, part: true},
		"a part that is passed": {results: results{"b": passed}, part: true, want: []string{"passes, although the table lists it as a failure: b"}},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			table, err := readTable([]byte(testTable))
			if err != nil {
				t.Fatal(err)
			}
			got := table.compare(tc.results, !tc.outside, !tc.part)
			slices.Sort(got)
			if !slices.Equal(got, tc.want) {
				t.Errorf("compare() = %q, want %q", got, tc.want)
			}
		})
	}
}
