package store

import (
	"cmp"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Read reads a file, a directory as Dir does, or standard input if path is "-". Besides the problems of Decode it reports
// objects that occur twice and names of unknown meshes, and, where a directory has no error, services that outbounds name and
// nobody has. mode is that of the probes of Dataplanes that name none. It returns an error if something cannot be read at all.
func Read(path string, stdin io.Reader, mode mesh.ProbesMode) ([]Document, []Problem, error) {
	files, err := readAll(path, stdin)
	if err != nil {
		return nil, nil, err
	}
	var entries []entry
	var problems []Problem
	for _, f := range files {
		good, found := decodeFile(f.name, f.data, mode)
		entries = append(entries, good...)
		problems = append(problems, found...)
	}
	chosen, found := choose(entries, nil)
	problems = append(problems, found...)
	orphans, found := chosen.orphans()
	problems = append(problems, found...)
	var documents []Document
	for key, e := range chosen {
		if !orphans[key] {
			documents = append(documents, e.Document)
		}
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() && !slices.ContainsFunc(problems, isError) {
		problems = append(problems, ofDirectory(path, documents)...)
	}
	slices.SortFunc(documents, func(a, b Document) int { return comparePlace(a.Place, b.Place) })
	slices.SortStableFunc(problems, func(a, b Problem) int { return comparePlace(a.Place, b.Place) })
	return documents, problems, nil
}

// ofDirectory returns the problems of documents that are all of a directory.
func ofDirectory(path string, documents []Document) []Problem {
	if len(documents) == 0 {
		return []Problem{{Place: Place{File: path}, Severity: Warning, Err: errNoObject}}
	}
	return unknownServices(path, documents)
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
		listed, err := listDirectory(path)
		if err != nil {
			return nil, err
		}
		names = slices.Sorted(maps.Keys(listed))
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

// limited reads up to one byte more than a file may have, so that Decode can tell that it is too long.
func limited(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, maxFile+1)) }

// listDirectory lists the files of a directory that hold objects: *.yaml, *.yml and *.json that are not hidden. It follows links
// and does not descend into directories.
func listDirectory(path string) (map[string]os.FileInfo, error) {
	all, err := os.ReadDir(path)
	if err != nil {
		return nil, fmt.Errorf("list directory of objects: %w", err)
	}
	listed := map[string]os.FileInfo{}
	for _, item := range all {
		if !isObjectFile(item.Name()) {
			continue
		}
		name := filepath.Join(path, item.Name())
		// A dangling link, or a file that has just gone, counts as not there.
		if info, err := os.Stat(name); err == nil && info.Mode().IsRegular() {
			listed[name] = info
		}
	}
	return listed, nil
}

func isObjectFile(name string) bool {
	switch filepath.Ext(name) {
	case ".yaml", ".yml", ".json":
		return !strings.HasPrefix(name, ".")
	}
	return false
}
