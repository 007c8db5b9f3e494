package store

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Read reads a file, a folder as Dir does, or standard input where path is "-". Beside the problems of Decode it finds
// objects that come twice and the names of unknown meshes. The error is one of reading: what was read is then not all.
func Read(path string, stdin io.Reader) ([]Document, []Problem, error) {
	files, err := readAll(path, stdin)
	if err != nil {
		return nil, nil, err
	}
	var problems []Problem
	c := claims{}
	for _, f := range files {
		entries, found := decodeFile(f.name, f.data)
		problems = append(problems, found...)
		problems = append(problems, c.add(entries)...)
	}
	entries, found := c.known()
	problems = append(problems, found...)
	documents := make([]Document, 0, len(entries))
	for _, e := range entries {
		documents = append(documents, e.Document)
	}
	sortByPlace(documents, problems)
	return documents, problems, nil
}

func sortByPlace(documents []Document, problems []Problem) {
	slices.SortFunc(documents, func(a, b Document) int { return comparePlace(a.Place, b.Place) })
	slices.SortStableFunc(problems, func(a, b Problem) int { return comparePlace(a.Place, b.Place) })
}

func comparePlace(a, b Place) int {
	return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Document, b.Document), cmp.Compare(a.Line, b.Line))
}

type fileText struct {
	name string
	data []byte
}

func readAll(path string, stdin io.Reader) ([]fileText, error) {
	if path == "-" {
		data, err := limited(stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		return []fileText{{"-", data}}, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	names := []string{path}
	if info.IsDir() {
		if names, err = listFolder(path); err != nil {
			return nil, err
		}
	}
	files := make([]fileText, 0, len(names))
	for _, name := range names {
		data, err := readFile(name)
		if err != nil {
			return nil, err
		}
		files = append(files, fileText{name, data})
	}
	return files, nil
}

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	defer func() { _ = file.Close() }() // it was only read
	data, err := limited(file)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return data, nil
}

// limited reads one byte more than a file may have, so that Decode can tell.
func limited(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, maxFile+1)) }

// listFolder lists the files of a folder that hold objects, sorted: *.yaml, *.yml and *.json, not hidden ones, links
// followed, folders within left alone.
func listFolder(path string) ([]string, error) {
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("list folder of objects: %w", err)
	}
	var names []string
	for _, item := range all {
		if !isObjectFile(item.Name()) {
			continue
		}
		name := filepath.Join(path, item.Name())
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			names = append(names, name)
		}
	}
	return names, nil
}

func isObjectFile(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}

// claims are the objects of several files, and which document each is taken from.
type claims map[mesh.Key]entry

// add takes the objects of one file, but for those that another file has.
func (c claims) add(entries []entry) []Problem {
	var problems []Problem
	for _, e := range entries {
		if other, taken := c[e.Object.Key()]; taken {
			problems = append(problems, duplicate(e, other.Place))
			continue
		}
		c[e.Object.Key()] = e
	}
	return problems
}

// known returns the objects whose mesh is among them, and a problem for each of the others. Without any Mesh there is
// one named default.
func (c claims) known() ([]entry, []Problem) {
	meshes := c.meshes()
	good := make([]entry, 0, len(c))
	var problems []Problem
	for key, e := range c {
		if key.Kind == mesh.KindMesh || slices.Contains(meshes, key.Mesh) {
			good = append(good, e)
		} else {
			problems = append(problems, e.problem(e.mesh, key.Mesh, "must be the name of a Mesh: "+shorten(meshes)))
		}
	}
	return good, problems
}

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
	slices.Sort(names)
	return names
}

// shorten lists the first few of many names.
func shorten(names []string) string {
	const few = 10
	if len(names) > few {
		return strings.Join(names[:few], ", ") + ", ..."
	}
	return strings.Join(names, ", ")
}
