package sonde_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"
)

var (
	markdownLink    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	markdownHeading = regexp.MustCompile(`(?m)^#+ (.*)$`)
	markdownCode    = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
)

// TestLinks looks for links of Markdown files to files and headings that do not exist.
func TestLinks(t *testing.T) {
	links := 0
	err := filepath.WalkDir(".", func(page string, entry fs.DirEntry, err error) error {
		if err == nil && entry.IsDir() && page == "bin" {
			return filepath.SkipDir
		}
		if err != nil || filepath.Ext(page) != ".md" {
			return err
		}
		for _, match := range markdownLink.FindAllStringSubmatch(withoutCode(t, page), -1) {
			if strings.Contains(match[1], "://") || strings.HasPrefix(match[1], "mailto:") {
				continue
			}
			links++
			file, anchor, _ := strings.Cut(match[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
			}
			if _, err := os.Stat(target); err != nil {
				t.Errorf("%s links to %s, which does not exist", page, match[1])
			} else if anchor != "" && !headings(t, target)[anchor] {
				t.Errorf("%s links to %s, which has no such heading", page, match[1])
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if links < 300 {
		t.Errorf("%d links found, there are more", links)
	}
}

// withoutCode returns the text of a Markdown file without its blocks of code.
func withoutCode(t *testing.T, page string) string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	return markdownCode.ReplaceAllString(string(text), "")
}

// headings returns the anchors of a Markdown file, as GitHub makes them.
func headings(t *testing.T, page string) map[string]bool {
	t.Helper()
	all := map[string]bool{}
	for _, match := range markdownHeading.FindAllStringSubmatch(withoutCode(t, page), -1) {
		title := markdownLink.ReplaceAllString(strings.ReplaceAll(match[1], "[", ""), "")
		all[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsNumber(r):
				return unicode.ToLower(r)
			}
			return -1
		}, title)] = true
	}
	return all
}
