// Package tier knows which packages are fast. Fast tests use no processes, no sockets and only the clock of
// testing/synctest.
package tier

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// List is the file with the real packages that make test still runs: one line each, with the path and the reason.
const List = "test/fast.txt"

// real are the directories of real tests.
var real = []string{"test/real", "test/e2e", "test/bench"}

// Tiers has the tiers of all packages. Packages are named by their directories, as slash-separated paths from the top
// of the repository.
type Tiers struct {
	listed map[string]int // line number by package
}

// Read reads the list of a repository.
func Read(root string) (*Tiers, error) {
	data, err := os.ReadFile(filepath.Join(root, filepath.FromSlash(List)))
	if err != nil {
		return nil, fmt.Errorf("read list of real packages: %w", err)
	}
	t := &Tiers{listed: map[string]int{}}
	var errs []error
	number := 0
	for line := range strings.Lines(string(data)) {
		number++
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		name, reason, _ := strings.Cut(line, " ")
		switch {
		case strings.TrimSpace(reason) == "":
			errs = append(errs, fmt.Errorf("%s:%d: package %s has no reason: write it after the path", List, number, name))
		case path.Clean(name) != name || path.IsAbs(name):
			errs = append(errs, fmt.Errorf("%s:%d: invalid path %s: write it from the top of the repository, as %s", List, number, name, "test/feature"))
		case t.listed[name] != 0:
			errs = append(errs, fmt.Errorf("%s:%d: package %s is listed twice", List, number, name))
		}
		t.listed[name] = number
	}
	return t, errors.Join(errs...)
}

// Real reports whether a package has real tests.
func (t *Tiers) Real(directory string) bool {
	return t.listed[directory] != 0 || slices.ContainsFunc(real, func(top string) bool {
		return directory == top || strings.HasPrefix(directory, top+"/")
	})
}

// Unknown returns an error for each line of the list that names none of these packages.
func (t *Tiers) Unknown(packages map[string]bool) error {
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(t.listed)) {
		if !packages[name] {
			errs = append(errs, fmt.Errorf("%s:%d: no package in %s: remove the line, or correct its path", List, t.listed[name], name))
		}
	}
	return errors.Join(errs...)
}
