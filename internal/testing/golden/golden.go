// Package golden compares the results of tests with files. With -update, `go test` writes these files instead, and
// deletes those that no test creates.
package golden

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the golden files, and delete those that no test creates")

// Files compares the files of a directory, by their relative paths, each in its own subtest. Other files that match
// these patterns fail the test.
func Files(t *testing.T, directory string, files map[string][]byte, patterns ...string) {
	t.Helper()
	for path, got := range files {
		t.Run(path, func(t *testing.T) { compare(t, filepath.Join(directory, path), string(got)) })
	}
	for _, pattern := range patterns {
		orphans(t, filepath.Join(directory, pattern), func(path string) bool {
			name, err := filepath.Rel(directory, path)
			_, ok := files[name]
			return err == nil && ok
		})
	}
}

func text(name string) string { return filepath.Join("testdata", name+".txt") }

// Compare fails the test if got differs from testdata/<name>.txt.
func Compare(t *testing.T, name, got string) {
	t.Helper()
	compare(t, text(name), got)
}

// Orphans fails the test for each file of testdata that no test creates. made reports whether a test creates the file,
// by the name passed to Compare.
func Orphans(t *testing.T, made func(name string) bool) {
	t.Helper()
	orphans(t, text("*"), func(path string) bool { return made(strings.TrimSuffix(filepath.Base(path), ".txt")) })
}

func compare(t *testing.T, path, got string) {
	t.Helper()
	if *update {
		write(t, path, got)
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatalf("%v; go test -update writes it", err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", path, diff)
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	err := os.MkdirAll(filepath.Dir(path), 0o755) //nolint:gosec // for Git
	if err == nil {
		err = os.WriteFile(path, []byte(text), 0o644) //nolint:gosec // for Git
	}
	if err != nil {
		t.Fatal(err)
	}
}

// orphans deletes the files that match a pattern and that no test creates, or fails the test.
func orphans(t *testing.T, pattern string, made func(path string) bool) {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		t.Fatalf("no file matches %s: %v", pattern, err)
	}
	for _, path := range files {
		switch {
		case made(path):
		case !*update:
			t.Errorf("%s: no test creates this file; go test -update deletes it", path)
		default:
			if err := os.Remove(path); err != nil {
				t.Error(err)
			}
			_ = os.Remove(filepath.Dir(path)) // the directory too, if it is empty now
		}
	}
}
