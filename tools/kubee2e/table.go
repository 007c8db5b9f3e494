package main

import (
	_ "embed" // the table
	"errors"
	"fmt"
	"maps"

	"sigs.k8s.io/yaml"
)

//go:embed known.yaml
var knownText []byte

// tableFile is the path of the table for messages.
const tableFile = "tools/kubee2e/known.yaml"

// table has the known failures.
type table struct {
	// Mesh lists tests that fail in the mesh, and pass without it.
	Mesh []group `json:"mesh"`
	// Cluster lists tests that fail without the mesh, because the test bed lacks a feature.
	Cluster []group `json:"cluster"`
}

// group has tests that fail for the same reason.
type group struct {
	Reason string   `json:"reason"`
	Tests  []string `json:"tests"`
}

// readTable reads a table. A group without a reason or tests, and a duplicate test, are errors.
func readTable(text []byte) (*table, error) {
	t := &table{}
	if err := yaml.UnmarshalStrict(text, t); err != nil {
		return nil, err
	}
	var faults []error
	seen := map[string]bool{}
	for section, groups := range map[string][]group{"mesh": t.Mesh, "cluster": t.Cluster} {
		for i, g := range groups {
			if g.Reason == "" || len(g.Tests) == 0 {
				faults = append(faults, fmt.Errorf("%s[%d] lacks a reason or tests", section, i))
			}
			for _, test := range g.Tests {
				if seen[test] {
					faults = append(faults, fmt.Errorf("%q: duplicate test", test))
				}
				seen[test] = true
			}
		}
	}
	return t, errors.Join(faults...)
}

func names(groups []group) map[string]bool {
	all := map[string]bool{}
	for _, g := range groups {
		for _, test := range g.Tests {
			all[test] = true
		}
	}
	return all
}

// expected returns the tests that are known to fail in the mesh, or without it.
func (t *table) expected(mesh bool) map[string]bool {
	all := names(t.Cluster)
	if mesh {
		maps.Copy(all, names(t.Mesh))
	}
	return all
}

// compare returns a line for each test whose outcome differs from the table. In a complete run, each test of the table
// must have run.
func (t *table) compare(r results, mesh, everything bool) (differences []string) {
	expected := t.expected(mesh)
	onlyMesh := names(t.Mesh)
	for _, name := range r.unexpected(expected) {
		if onlyMesh[name] {
			differences = append(differences, "fails without the mesh, although the table lists it as a failure of the mesh: "+name)
		} else {
			differences = append(differences, "fails, and is not in the table: "+name)
		}
	}
	for name := range expected {
		o, ran := r[name]
		switch {
		case o == passed:
			differences = append(differences, "passes, although the table lists it as a failure: "+name)
		case everything && (!ran || o == skipped):
			differences = append(differences, "is in the table and did not run: "+name)
		}
	}
	return differences
}
