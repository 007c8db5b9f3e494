package store

import (
	"maps"
	"slices"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// resolve decides which objects the directory has as a whole. New content that conflicts with another file, or names an
// unknown mesh, is not used: the last good content of its file stays in use. applied is the previous result. Resolving
// the same files again changes nothing.
func (f *directory) resolve(applied claims) claims {
	for before := -1; ; {
		chosen, orphans, problems := f.usePending(applied)
		refused := f.pendingFiles()
		// The contents that are in use now may no longer conflict with refused ones: repeat until nothing changes.
		done := len(refused) == 0
		if !done && len(refused) == before {
			var more []Problem
			more, done = f.useOnePending(refused, chosen)
			problems = append(problems, more...)
			orphans, _ = chosen.orphans(f.recorded)
		}
		before = len(refused)
		chosen.dropOrphans(orphans, applied, f.recorded)
		if done {
			f.conflicts = problems
			return chosen
		}
		applied = chosen
	}
}

// pendingFiles returns the names of the files that have pending content, sorted.
func (f *directory) pendingFiles() []string {
	var names []string
	for name, file := range f.files {
		if file.pending != nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// usePending puts pending contents without conflicts into use. It returns the documents chosen from all contents that
// are in use then, the orphans among these documents, and the problems.
func (f *directory) usePending(applied claims) (claims, map[mesh.Key]bool, []Problem) {
	names := slices.Sorted(maps.Keys(f.files))
	refused := map[string]bool{}
	for {
		var entries []entry
		for _, name := range names {
			if file := f.files[name]; file.pending != nil && !refused[name] {
				entries = append(entries, *file.pending...)
			} else {
				entries = append(entries, file.entries...)
			}
		}
		chosen, problems := choose(entries, applied)
		orphans, unknown := chosen.orphans(f.recorded)
		problems = append(problems, unknown...)
		if f.refuse(refused, problems) {
			continue
		}
		for name, file := range f.files {
			if file.pending != nil && !refused[name] {
				file.use()
			}
		}
		// A refused file has its own problems, which its new content causes.
		return chosen, orphans, slices.DeleteFunc(problems, func(p Problem) bool { return refused[p.File] })
	}
}

// refuse adds files whose pending content has a problem to refused, and reports whether there were any.
func (f *directory) refuse(refused map[string]bool, problems []Problem) bool {
	before := len(refused)
	for _, p := range problems {
		if file := f.files[p.File]; file.pending != nil && file.whole {
			refused[p.File] = true
		}
	}
	return len(refused) > before
}

// useOnePending puts the first refused content into use that does not conflict with the contents in use: usePending
// also compared it with other refused contents. Without such content, all stay refused, with these problems.
func (f *directory) useOnePending(refused []string, chosen claims) (problems []Problem, none bool) {
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
		found := file.conflicts(chosen, meshes, f.recorded)
		if len(found) == 0 {
			file.use()
			for _, e := range file.entries {
				chosen[e.Object.Key()] = e // later documents with the same object conflict with it
			}
			return nil, false
		}
		problems = append(problems, found...)
	}
	return problems, true
}

// use puts the pending content into use.
func (f *file) use() {
	f.lastGood.keep(f.name, f.text)
	f.entries, f.pending, f.text, f.whole = *f.pending, nil, nil, true
}

// conflicts returns the conflicts of the pending content with the chosen documents and the Meshes in use.
func (f *file) conflicts(chosen claims, meshes []entry, recorded map[string]*mesh.Mesh) []Problem {
	known := claims{}
	for _, m := range meshes {
		if m.Place.File != f.name {
			known[m.Object.Key()] = m
		}
	}
	var problems []Problem
	for _, e := range *f.pending {
		key := e.Object.Key()
		if other, taken := chosen[key]; taken && other.Place.File != f.name {
			problems = append(problems, duplicate(e, other.Place))
		}
		known[key] = e
	}
	_, unknown := known.orphans(recorded)
	return append(problems, unknown...)
}
