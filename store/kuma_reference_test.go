package store

import (
	"flag"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/doctest"
)

var update = flag.Bool("update", false, "write docs/reference/kuma.md")

// TestKumaReferenceGolden compares docs/reference/kuma.md with the kinds and fields of Kuma's that Sonde does not have.
func TestKumaReferenceGolden(t *testing.T) {
	var page strings.Builder
	write := func(format string, args ...any) { _, _ = fmt.Fprintf(&page, format, args...) } // never fails
	write("# What Kuma has and Sonde has not\n\n<!-- Written by make golden from store/kuma_kinds.go and kuma_fields.go. -->\n\n" +
		"`sondectl validate -f DIRECTORY` says the same of each document.\n\n## Kinds\n\nA document of one of these kinds is refused; the others of its file are used.\n\n" +
		"| kind | what that means |\n|---|---|\n")
	means := func(kind string) string { return kumaKinds[kind] }
	for _, kinds := range alike(slices.Sorted(maps.Keys(kumaKinds)), means) {
		write("| `%s` | %s |\n", strings.Join(kinds, "`, `"), kumaKinds[kinds[0]])
	}
	fields := func(text func(kumaField) string) {
		for _, kind := range mesh.Kinds() {
			said := func(path string) string { return text(kumaFields[kind][path]) }
			for _, paths := range alike(slices.Sorted(maps.Keys(kumaFields[kind])), said) {
				if said(paths[0]) != "" {
					write("| %s | `%s` | %s |\n", kind, strings.Join(paths, "`, `"), said(paths[0]))
				}
			}
		}
	}
	write("\n## Fields\n\nThese are ignored, with a warning.\n\n| kind | field | what that means |\n|---|---|---|\n")
	fields(func(f kumaField) string {
		if f == bookkeeping {
			return "nothing: Kuma's control plane writes it"
		}
		return f.means
	})
	write("\nThese are refused unless they are empty.\n\n| kind | field | what to do |\n|---|---|---|\n")
	fields(func(f kumaField) string { return f.filled })
	write("\nThese are of earlier releases, and refused.\n\n| kind | field | what to do |\n|---|---|---|\n")
	fields(func(f kumaField) string {
		instead, _ := strings.CutPrefix(f.refused, earlier)
		if instead == f.refused {
			return ""
		}
		return instead
	})
	doctest.Golden(t, *update, "../docs/reference/kuma.md", page.String())
}

// alike groups names with the same text, in the order of the first of each.
func alike(names []string, text func(string) string) [][]string {
	var groups [][]string
	for _, name := range names {
		i := slices.IndexFunc(groups, func(group []string) bool { return text(group[0]) == text(name) })
		if i < 0 {
			groups = append(groups, []string{name})
			continue
		}
		groups[i] = append(groups[i], name)
	}
	return groups
}
