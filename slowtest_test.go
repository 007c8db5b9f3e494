package sonde_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestOnlyShortRunsLeaveOut checks that a short run is asked for by `make test-short` alone, and that only internal/slowtest asks for it:
// no test decides by itself what is left out.
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
		t.Errorf("-short is in\n%s\nwant it in the recipe of make test-short alone", strings.Join(short, "\n"))
	}
	call := "testing." + "Short("
	err := filepath.WalkDir(".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || path == filepath.Join("internal", "slowtest", "slowtest.go") {
			return err
		}
		if strings.Contains(read(path), call) {
			t.Errorf("%s calls %s): use internal/slowtest", path, call)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}
