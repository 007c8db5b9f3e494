package store

import (
	"maps"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// resolve decides what the folder holds as a whole. A new content that clashes with another file, or names an unknown
// mesh, is not used: its file keeps the last good one, and nothing else of it counts. applied is what the folder held
// before. Resolving what was resolved changes nothing.
func (f *folder) resolve(applied claims) claims {
	for before := -1; ; {
		chosen, strangers, problems := f.agree(applied)
		refused := f.pending()
		// What agree used, or whose objects they are now, may make room for those that are refused: it is asked once more.
		done := len(refused) == 0
		if !done && len(refused) == before {
			var more []Problem
			more, done = f.useNext(refused, chosen)
			problems = append(problems, more...)
			strangers, _ = chosen.strangers()
		}
		before = len(refused)
		chosen.settle(strangers, applied)
		if done {
			f.clashes = problems
			return chosen
		}
		applied = chosen
	}
}

// pending are the files that have a new content, by name.
func (f *folder) pending() []string {
	var names []string
	for name, file := range f.files {
		if file.next != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// agree uses the new contents that go together. It returns the documents chosen from what is in use then, those without
// a Mesh among them, and what is wrong.
func (f *folder) agree(applied claims) (claims, map[mesh.Key]bool, []Problem) {
	names := slices.Sorted(maps.Keys(f.files))
	refused := map[string]bool{}
	for {
		var entries []entry
		for _, name := range names {
			if file := f.files[name]; file.next != nil && !refused[name] {
				entries = append(entries, *file.next...)
			} else {
				entries = append(entries, file.entries...)
			}
		}
		chosen, problems := choose(entries, applied)
		strangers, unknown := chosen.strangers()
		problems = append(problems, unknown...)
		if f.refuse(refused, problems) {
			continue
		}
		for name, file := range f.files {
			if file.next != nil && !refused[name] {
				file.use()
			}
		}
		// Of a file that is refused, what is wrong with the text as it is now is told instead.
		return chosen, strangers, slices.DeleteFunc(problems, func(p Problem) bool { return refused[p.File] })
	}
}

// refuse adds the new contents that have a problem, and says whether there are any.
func (f *folder) refuse(refused map[string]bool, problems []Problem) bool {
	before := len(refused)
	for _, p := range problems {
		if file := f.files[p.File]; file.next != nil && file.whole {
			refused[p.File] = true
		}
	}
	return len(refused) > before
}

// useNext uses the first new content that goes with what is in use: those that agree found it to clash with are refused
// themselves. If there is none, all are refused for good, with these problems.
func (f *folder) useNext(refused []string, chosen claims) (problems []Problem, none bool) {
	var meshes []entry
	for _, file := range f.files {
		for _, e := range file.entries {
			if e.Object.Key().Kind == mesh.KindMesh {
				meshes = append(meshes, e)
			}
		}
	}
	for _, name := range refused {
		file := f.files[name]
		found := file.obstacles(chosen, meshes)
		if len(found) == 0 {
			file.use()
			for _, e := range file.entries {
				chosen[e.Object.Key()] = e // theirs from now on, whoever else is still to be used
			}
			return nil, false
		}
		problems = append(problems, found...)
	}
	return problems, true
}

// use makes the new content the one in use.
func (f *file) use() { f.entries, f.next, f.whole = *f.next, nil, true }

// obstacles are what is wrong with the new content beside the chosen documents and the Meshes in use.
func (f *file) obstacles(chosen claims, meshes []entry) []Problem {
	known := claims{}
	for _, m := range meshes {
		if m.Place.File != f.name {
			known[m.Object.Key()] = m
		}
	}
	var problems []Problem
	for _, e := range *f.next {
		key := e.Object.Key()
		if other, taken := chosen[key]; taken && other.Place.File != f.name {
			problems = append(problems, duplicate(e, other.Place))
		}
		known[key] = e
	}
	_, unknown := known.strangers()
	return append(problems, unknown...)
}
