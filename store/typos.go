package store

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// correct reports misspelt fields of a value, and continues with the names that were meant, so that a typo causes no
// further errors. The content of such a field is read only for further problems in it.
func (d *decoder) correct(n *yaml.Node, path string, into any) {
	for range maxDepth {
		var typos []func()
		mesh.CheckJSON(path, toJSON(n), into, func(*mesh.FieldError) {}, func(at, name string, known []string) {
			around := strings.TrimSuffix(at, name)
			field := strings.TrimPrefix(at, d.root)
			if _, ofKuma := lookUp(kumaFields[d.kind], indexPattern.ReplaceAllString(field, "[]")); ofKuma ||
				isMisplaced(at, name, known) {
				return
			}
			near, _ := mesh.Nearest(name, known)
			if _, ok := d.fields[around+near]; near == "" || ok {
				return
			}
			typos = append(typos, func() {
				d.unknown(at, field, name, known)
				d.rename(strings.TrimSuffix(around, "."), name, near)
			})
		})
		if typos == nil {
			return
		}
		for _, typo := range typos {
			typo()
		}
	}
}

// rename gives a field of the mapping at path around another name, and adjusts the paths below it.
func (d *decoder) rename(around, name, to string) {
	p, _ := find(pairs(d.fields[around].value), name)
	p.key.Value = to
	d.index(join(around, to), p)
}

// index records a field and the fields below it.
func (d *decoder) index(path string, p pair) {
	d.fields[path] = written{p.value, d.line(p.key)}
	switch p.value.Kind {
	case yaml.SequenceNode:
		for i, item := range p.value.Content {
			d.index(fmt.Sprintf("%s[%d]", path, i), pair{item, item})
		}
	case yaml.MappingNode:
		for _, inner := range pairs(p.value) {
			d.index(join(path, inner.name()), inner)
		}
	}
}

// standsFor records which fields may be missing because an unknown field was written instead.
func (d *decoder) standsFor(path, name string, known []string) {
	around := strings.TrimSuffix(path, name)
	near, _ := mesh.Nearest(name, known)
	_, ok := d.fields[around+near]
	switch {
	case near == "" || isMisplaced(path, name, known):
		d.strange = append(d.strange, strings.TrimSuffix(around, "."))
	case !ok:
		// without metadata and spec, a name is at the top level
		d.replaced = append(d.replaced, around+near, strings.TrimPrefix(around, "metadata.")+near)
	}
}

// isReplaced reports whether a field is, or is below, a field for which another name was written.
func (d *decoder) isReplaced(path string) bool {
	return slices.ContainsFunc(d.replaced, func(outer string) bool { return within(path, outer) })
}

// maybeStrange reports whether a field may be missing because it was written as an unknown field.
func (d *decoder) maybeStrange(path string) bool {
	return slices.ContainsFunc(d.strange, func(around string) bool {
		rest, ok := strings.CutPrefix(path, around)
		if around != "" {
			rest, ok = strings.CutPrefix(rest, ".")
		}
		if !ok {
			return false
		}
		end := strings.IndexAny(rest, ".[")
		if end < 0 {
			end = len(rest)
		}
		_, ok = d.fields[path[:len(path)-len(rest)+end]]
		return !ok
	})
}
