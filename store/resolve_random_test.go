package store

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
)

// histories is the number that each test tries in nightly runs; other runs try a quarter.
const histories = 1000

// anyTexts changes some files. There are so few names that files often have the same object.
func anyTexts(r *rand.Rand) texts {
	all := []string{meshDefault, meshProd, service("x"), service("y"), serviceOf("prod", "x"), serviceOf("prod", "y"), serviceOf("prod", "z")}
	changed := texts{}
	for range 1 + r.IntN(4) {
		documents := []string{"# a comment\n"}
		for _, i := range r.Perm(len(all))[:r.IntN(4)] {
			documents = append(documents, all[i])
		}
		switch r.IntN(8) {
		case 0:
			documents = nil
		case 1:
			documents = append(documents, broken)
		}
		changed[string(rune('a'+r.IntN(4)))+".yaml"] = documents
	}
	return changed
}

// history describes what was written.
func history(steps []texts) string {
	var b strings.Builder
	for i, step := range steps {
		fmt.Fprintf(&b, "%d: %q\n", i, step)
	}
	return b.String()
}

// TestResolveRandomDirectories writes random files.
func TestResolveRandomDirectories(t *testing.T) {
	for seed := range uint64(slowtest.Rounds(histories, histories/4)) {
		r := rand.New(rand.NewPCG(seed, 5))
		one, other := newResolved(), newResolved()
		var steps []texts
		for range 6 {
			step := anyTexts(r)
			steps = append(steps, step)
			untouched := one.untouched(step)
			held, problems := one.resolve(step)
			wrong := one.holdsAll(untouched)
			wrong = append(wrong, one.refusedForNothing()...)

			// The order of files in a directory must not matter.
			otherHeld, otherProblems := other.resolve(step)
			wrong = append(wrong, differs("another directory of the same files", held, problems, otherHeld, otherProblems)...)
			again, againProblems := one.resolve(nil)
			wrong = append(wrong, differs("resolved again", held, problems, again, againProblems)...)
			if len(wrong) > 0 {
				t.Fatalf("seed %d: %s\n%s", seed, strings.Join(wrong, "\n"), history(steps))
			}
		}
		mended := []texts{{"a.yaml": {meshDefault}}, {"b.yaml": {meshProd, service("x")}}, {"c.yaml": {service("y"), serviceOf("prod", "x")}}, {"d.yaml": {serviceOf("prod", "y")}}}
		r.Shuffle(len(mended), func(i, j int) { mended[i], mended[j] = mended[j], mended[i] })
		var held, problems []string
		for _, step := range mended {
			held, problems = one.resolve(step)
		}
		want := []string{
			"Mesh default: a.yaml, document 1, line 1", "Mesh prod: b.yaml, document 1, line 1",
			"Service default x: b.yaml, document 2, line 4", "Service default y: c.yaml, document 1, line 1",
			"Service prod x: c.yaml, document 2, line 4", "Service prod y: d.yaml, document 1, line 1",
		}
		if wrong := differs("mended", want, nil, held, problems); len(wrong) > 0 {
			t.Fatalf("seed %d: %s\n%s", seed, wrong, history(append(steps, mended...)))
		}
	}
}

// TestResolveOrderOfFirstReading has files without common objects. Some of the files are invalid.
func TestResolveOrderOfFirstReading(t *testing.T) {
	for seed := range uint64(slowtest.Rounds(histories/5, histories/20)) {
		r := rand.New(rand.NewPCG(seed, 6))
		documents := []string{meshDefault, meshProd, service("x"), service("y"), serviceOf("prod", "x"), serviceOf("prod", "y")}
		all := texts{}
		for _, d := range documents {
			name := string(rune('a'+r.IntN(4))) + ".yaml"
			all[name] = append(all[name], d)
		}
		var steps []texts
		for name := range all {
			if r.IntN(3) == 0 {
				all[name] = append(all[name], broken)
			}
			steps = append(steps, texts{name: all[name]})
		}
		held, problems := newResolved().resolve(all)
		oneByOne := newResolved()
		var later, laterProblems []string
		for _, step := range steps {
			later, laterProblems = oneByOne.resolve(step)
		}
		if wrong := differs("one by one", held, problems, later, laterProblems); len(wrong) > 0 || len(held) != len(documents) {
			t.Fatalf("seed %d: holds %q: %s\n%s", seed, held, wrong, history(steps))
		}
	}
}

func differs(what string, wantHeld, wantProblems, held, problems []string) (wrong []string) {
	if diff := cmp.Diff(wantHeld, held); diff != "" {
		wrong = append(wrong, what+": held (-want +got):\n"+diff)
	}
	if diff := cmp.Diff(wantProblems, problems); diff != "" {
		wrong = append(wrong, what+": problems (-want +got):\n"+diff)
	}
	return wrong
}

// untouched returns the objects of files that do not change now, and have no pending content.
func (r *resolved) untouched(changed texts) claims {
	same := claims{}
	for key, e := range r.held {
		_, written := changed[e.Place.File]
		if f := r.files[e.Place.File]; !written && f != nil && f.pending == nil && slices.ContainsFunc(f.entries, func(now entry) bool { return now.Object == e.Object }) {
			same[key] = e
		}
	}
	return same
}

func (r *resolved) holdsAll(want claims) (wrong []string) {
	for key, e := range want {
		if r.held[key].Object != e.Object {
			wrong = append(wrong, fmt.Sprintf("%v of a file that did not change is gone, or from elsewhere", key))
		}
	}
	return wrong
}

// refusedForNothing returns refused contents that could be used: none of their objects is in use in another file, and
// all their meshes exist.
func (r *resolved) refusedForNothing() (wrong []string) {
	for _, name := range r.pendingFiles() {
		taken, meshes := map[mesh.Key]bool{}, map[string]bool{}
		add := func(e entry) {
			if k := e.Object.Key(); k.Kind == mesh.KindMesh {
				meshes[k.Name] = true
			}
		}
		for _, f := range r.files {
			for _, e := range f.entries {
				if f.name != name {
					taken[e.Object.Key()] = true
					add(e)
				}
			}
		}
		for _, e := range *r.files[name].pending {
			add(e)
		}
		if len(meshes) == 0 {
			meshes[mesh.DefaultMesh] = true
		}
		if !slices.ContainsFunc(*r.files[name].pending, func(e entry) bool {
			k := e.Object.Key()
			return taken[k] || k.Kind != mesh.KindMesh && !meshes[k.Mesh]
		}) {
			wrong = append(wrong, name+" is refused for nothing")
		}
	}
	return wrong
}
