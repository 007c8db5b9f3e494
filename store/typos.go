package store

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// correct reports the fields of a value whose names are typos, and goes on with the names that are meant: what a typo leaves out must not be the
// reason of further errors. What is below such a field is read only for the sake of the others.
func (d *decoder) correct(n *yaml.Node, path string, into any) {
	for range maxDepth {
		var typos []func()
		mesh.CheckJSON(path, toJSON(n), into, func(*mesh.FieldError) {}, func(at, name string, known []string) {
			around := strings.TrimSuffix(at, name)
			field := strings.TrimPrefix(at, d.root)
			if _, ofKuma := lookUp(kumaFields[d.kind], indexPattern.ReplaceAllString(field, "[]")); ofKuma || isMisplaced(at, name, known) {
				return
			}
			near, _ := mesh.Nearest(name, known)
			if _, there := d.fields[around+near]; near == "" || there {
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

// rename gives a field of the mapping at a path another name, and all below it the paths that they have then.
func (d *decoder) rename(around, name, to string) {
	p, _ := find(pairs(d.fields[around].value), name)
	p.key.Value = to
	d.index(join(around, to), p)
}

// index enters a field, and those below it.
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

// standsFor notes which fields may be missing since an unknown one was written for them.
func (d *decoder) standsFor(path, name string, known []string) {
	around := strings.TrimSuffix(path, name)
	near, _ := mesh.Nearest(name, known)
	_, there := d.fields[around+near]
	switch {
	case near == "" || isMisplaced(path, name, known):
		d.strange = append(d.strange, strings.TrimSuffix(around, "."))
	case !there:
		d.replaced = append(d.replaced, around+near, strings.TrimPrefix(around, "metadata.")+near) // without either, a name is at the top
	}
}

// isReplaced reports whether a field is, or is below, one that another name stands for.
func (d *decoder) isReplaced(path string) bool {
	return slices.ContainsFunc(d.replaced, func(outer string) bool { return within(path, outer) })
}

// maybeStrange reports whether an unknown field may be what is meant by one that is missing.
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
		_, there := d.fields[path[:len(path)-len(rest)+end]]
		return !there
	})
}
