package chart_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/test/chart"
	"github.com/sonde-mesh/sonde/test/harness"
)

var set = regexp.MustCompile("--set[ =]([\\w.]+)=([^\\s`]+)")

// TestDocs renders the chart with the values that a page of the docs recommends. The chart accepts any key below
// config, so the test compares these keys with the control plane's.
func TestDocs(t *testing.T) {
	root, err := harness.Root()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := os.ReadFile(filepath.Join(root, "docs", "reference", "sonde-cp.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, page := range append(pages(t, filepath.Join(root, "docs")), filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		var flags []string
		for _, match := range set.FindAllStringSubmatch(string(text), -1) {
			flags = append(flags, "--set="+match[1]+"="+match[2])
			if key, ok := strings.CutPrefix(match[1], "config."); ok && !strings.Contains(string(keys), "| `"+key+"` |") {
				t.Errorf("%s: %s: the control plane has no key %s", page, match[0], key)
			}
		}
		if len(flags) == 0 {
			continue
		}
		t.Run(filepath.Base(page), func(t *testing.T) {
			if _, err := chart.Render(t.Context(), flags...); err != nil {
				t.Errorf("%s: %v", strings.Join(flags, " "), err)
			}
		})
	}
}

// pages returns the Markdown files below a directory.
func pages(t *testing.T, directory string) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(directory, func(path string, _ fs.DirEntry, err error) error {
		if filepath.Ext(path) == ".md" {
			all = append(all, path)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}
