package store

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// entry is a valid document, with the lines that problems between documents refer to.
type entry struct {
	Document
	name, mesh field
}

// field is where a document sets a field.
type field struct {
	path string
	line int
}

func (e entry) problem(at field, value, allowed string) Problem {
	place := e.Place
	place.Line = at.line
	return Problem{Place: place, Severity: Error, Err: &mesh.FieldError{Field: at.path, Value: value, Allowed: allowed},
		Object: e.Object.Key()}
}

// duplicate returns the problem of an object that another document has, too.
func duplicate(e entry, other Place) Problem {
	k := e.Object.Key()
	what := "the " + string(k.Kind)
	if k.Mesh != "" {
		what += " of mesh " + strconv.Quote(k.Mesh)
	}
	return e.problem(e.name, k.Name, "must be unique: "+what+" with this name is in "+other.String()+" too")
}

// claims map each object to the document that is used for it.
type claims map[mesh.Key]entry

// choose chooses a document for each object: the one in the file that was used before, otherwise the first in the order
// of entries. It returns a problem for each other document with the object.
func choose(entries []entry, soFar claims) (claims, []Problem) {
	chosen := claims{}
	for _, e := range entries {
		key := e.Object.Key()
		owner, owned := soFar[key]
		if _, taken := chosen[key]; !taken || owned && owner.Place.File == e.Place.File {
			chosen[key] = e
		}
	}
	var problems []Problem
	for _, e := range entries {
		if winner := chosen[e.Object.Key()]; winner.Place != e.Place {
			problems = append(problems, duplicate(e, winner.Place))
		}
	}
	return chosen, problems
}

// orphans returns the objects whose mesh does not exist, with a problem for each. A recorded mesh exists, and so does
// the mesh named default if there is no Mesh.
func (c claims) orphans(recorded map[string]*mesh.Mesh) (map[mesh.Key]bool, []Problem) {
	meshes := c.meshes()
	meshes = slices.AppendSeq(meshes, maps.Keys(recorded))
	slices.Sort(meshes)
	meshes = slices.Compact(meshes)
	keys := map[mesh.Key]bool{}
	var problems []Problem
	for key, e := range c {
		if _, ok := slices.BinarySearch(meshes, key.Mesh); key.Kind != mesh.KindMesh && !ok {
			keys[key] = true
			problems = append(problems, e.problem(e.mesh, key.Mesh, "must be the name of a Mesh: "+shorten(meshes)))
		}
	}
	return keys, problems
}

// meshes returns the names of the meshes.
func (c claims) meshes() []string {
	var names []string
	for key := range c {
		if key.Kind == mesh.KindMesh {
			names = append(names, key.Name)
		}
	}
	if len(names) == 0 {
		return []string{mesh.DefaultMesh}
	}
	return names
}

// dropOrphans removes the orphans, but keeps each mesh that existed before as it was. So objects in use stay if a Mesh
// is removed, or if a first Mesh other than default is added.
func (c claims) dropOrphans(orphans map[mesh.Key]bool, before claims, recorded map[string]*mesh.Mesh) {
	bare := !c.hasMesh()
	for key := range orphans {
		meshKey := mesh.Key{Kind: mesh.KindMesh, Name: key.Mesh}
		old, kept := before[meshKey]
		if !kept && len(before) > 0 && slices.Contains(before.meshes(), key.Mesh) {
			old, kept = implied(key.Mesh), true
		}
		if kept {
			c[meshKey] = old
		} else {
			delete(c, key)
		}
	}
	// The Builder implies the default mesh only if there is no Mesh, but here a Mesh has stayed.
	if bare && c.hasMesh() && c.uses(mesh.DefaultMesh) && recorded[mesh.DefaultMesh] == nil {
		m := implied(mesh.DefaultMesh)
		c[m.Object.Key()] = m
	}
}

func implied(name string) entry {
	return entry{Document: Document{Object: mesh.ImpliedMesh(name)}}
}

func (c claims) hasMesh() bool {
	for key := range c {
		if key.Kind == mesh.KindMesh {
			return true
		}
	}
	return false
}

// uses reports whether any object belongs to that mesh.
func (c claims) uses(name string) bool {
	for key := range c {
		if key.Kind != mesh.KindMesh && key.Mesh == name {
			return true
		}
	}
	return false
}

// keys returns the keys in the order for the Builder: a Mesh before the objects that belong to it.
func (c claims) keys() []mesh.Key {
	return slices.SortedFunc(maps.Keys(c), func(a, b mesh.Key) int {
		return cmp.Or(
			cmp.Compare(slices.Index(mesh.Kinds(), a.Kind), slices.Index(mesh.Kinds(), b.Kind)),
			cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
}

// shorten joins the first ten names.
func shorten(names []string) string {
	const few = 10
	if len(names) > few {
		return strings.Join(names[:few], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
