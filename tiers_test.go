package sonde_test

import (
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestOnlyShortRunsLeaveOut checks that only `make test-short` sets -short, and only internal/testing/slowtest reads
// it: no test decides by itself what to skip.
func TestOnlyShortRunsLeaveOut(t *testing.T) {
	read := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
	asks := regexp.MustCompile(`(^|[^\w-])--?(test\.)?short\b`)
	var short []string
	for _, path := range []string{"Makefile", ".ci/run", ".github/workflows/ci.yml", ".github/workflows/nightly.yml"} {
		for line := range strings.Lines(read(path)) {
			if asks.MatchString(line) {
				short = append(short, path+": "+strings.TrimSpace(line))
			}
		}
	}
	_, recipe, _ := strings.Cut(read("Makefile"), "\ntest-short:")
	recipe, _, _ = strings.Cut(recipe, "\n\n")
	if len(short) != 1 || !strings.Contains(recipe, strings.TrimPrefix(short[0], "Makefile: ")) {
		t.Errorf("-short is in\n%s\nwant it only in the recipe of make test-short", strings.Join(short, "\n"))
	}
	call := "testing." + "Short("
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || path == filepath.Join("internal", "testing", "slowtest", "slowtest.go") {
			return err
		}
		if strings.Contains(read(path), call) {
			t.Errorf("%s calls %s): use internal/testing/slowtest", path, call)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testNames returns the tests that the packages below a directory of module test declare, by package.
func testNames(t *testing.T, top string) map[string]map[string]bool {
	t.Helper()
	declaration, names := regexp.MustCompile(`(?m)^func (Test\w+)\(`), map[string]map[string]bool{}
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		directory := filepath.Dir(path)
		for _, match := range declaration.FindAllSubmatch(data, -1) {
			if names[directory] == nil {
				names[directory] = map[string]bool{}
			}
			names[directory][string(match[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestRealTestsExist checks that `make test-real` runs each test of its list: go test ignores a name without a match.
func TestRealTestsExist(t *testing.T) {
	data, err := os.ReadFile("test/real.txt")
	if err != nil {
		t.Fatal(err)
	}
	declared := testNames(t, "test/real")
	for line := range strings.Lines(string(data)) {
		fields := strings.Fields(line)
		if len(fields) == 0 || fields[0] == "#" {
			continue
		}
		for _, name := range fields[1:] {
			if !declared["test/real/"+fields[0]][name] {
				t.Errorf("test/real.txt: test/real/%s has no %s", fields[0], name)
			}
		}
	}
}

// TestTableOfTiers checks that the tests that docs/testing.md names exist.
func TestTableOfTiers(t *testing.T) {
	page, err := os.ReadFile("docs/testing.md")
	if err != nil {
		t.Fatal(err)
	}
	declared := map[string]bool{}
	for _, names := range testNames(t, "test") {
		maps.Copy(declared, names)
	}
	for _, name := range regexp.MustCompile(`\bTest[A-Z]\w*(…?)`).FindAllString(string(page), -1) {
		prefix, several := strings.CutSuffix(name, "…")
		exists := declared[name]
		for other := range declared {
			exists = exists || several && strings.HasPrefix(other, prefix)
		}
		if !exists {
			t.Errorf("docs/testing.md names %s, which no package below test has", name)
		}
	}
}
