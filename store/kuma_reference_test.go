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
	write("# Kinds and fields of Kuma that Sonde does not support\n\n<!-- Written by make golden from store/kuma_kinds.go and kuma_fields.go. -->\n\n" +
		"`sondectl validate -f DIRECTORY` reports these in your documents.\n\n## Kinds\n\nSonde rejects documents of these kinds, and uses the other documents of the file.\n\n" +
		"| kind | in Sonde |\n|---|---|\n")
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
	write("\n## Fields\n\nSonde ignores these fields, with a warning.\n\n| kind | field | in Sonde |\n|---|---|---|\n")
	fields(func(f kumaField) string {
		if f == bookkeeping {
			return "no effect: Kuma's control plane writes it"
		}
		return f.means
	})
	write("\nSonde rejects these fields unless they are empty.\n\n| kind | field | what to do |\n|---|---|---|\n")
	fields(func(f kumaField) string { return f.filled })
	write("\nThese fields are from earlier releases of Kuma, and Sonde rejects them.\n\n| kind | field | what to do |\n|---|---|---|\n")
	fields(func(f kumaField) string {
		instead, _ := strings.CutPrefix(f.refused, earlier)
		if instead == f.refused {
			return ""
		}
		return instead
	})
	doctest.Golden(t, *update, "../docs/reference/kuma.md", page.String())
}

// alike groups names with the same text, in the order of the first name of each group.
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
