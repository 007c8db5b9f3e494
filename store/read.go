package store

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"syscall"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Read reads a file, a directory as Dir does, or standard input if path is "-". In addition to the problems of Decode,
// it reports objects that occur twice, names of unknown meshes and, for a directory without an error, services that
// only outbounds name. mode is the default probes mode of Dataplanes. It returns an error if something cannot be read
// at all.
func Read(path string, stdin io.Reader, mode mesh.ProbesMode) ([]Document, []Problem, error) {
	files, problems, err := readAll(path, stdin)
	if err != nil {
		return nil, nil, err
	}
	var entries []entry
	refused := map[string]*mesh.Mesh{} // the name of a Mesh that has an Error is usable
	for _, f := range files {
		good, found, meshes := decodeFile(f.name, f.data, mode)
		entries = append(entries, good...)
		problems = append(problems, found...)
		for _, name := range meshes {
			refused[name] = nil
		}
	}
	chosen, found := choose(entries, nil)
	problems = append(problems, found...)
	orphans, found := chosen.orphans(refused)
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

// ofDirectory returns the problems across all documents of a directory.
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

// readAll returns the texts of the files, and warnings about skipped entries.
func readAll(path string, stdin io.Reader) (files []fileText, skipped []Problem, err error) {
	if path == "-" {
		data, err := limited(stdin)
		if err != nil {
			return nil, nil, fmt.Errorf("read standard input: %w", err)
		}
		return []fileText{{"-", data}}, nil, nil
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, nil, fmt.Errorf("read objects: %w", err)
	}
	if !info.IsDir() { // including a named pipe, such as a shell's <(...)
		data, err := readFile(path)
		return []fileText{{path, data}}, nil, err
	}
	listed, skipped, err := listDirectory(path)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(listed)) {
		data, err := readEntry(name)
		if err != nil {
			return nil, nil, err
		}
		files = append(files, fileText{name, data})
	}
	return files, skipped, nil
}

// readEntry reads a file of a directory. It does not wait for the writer of a named pipe that has replaced the file.
func readEntry(name string) ([]byte, error) {
	file, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if target, linkErr := os.Readlink(name); err != nil && linkErr == nil {
		return nil, fmt.Errorf("read objects: a link to %s: %w", target, err)
	}
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	if info, err := file.Stat(); err == nil && !info.Mode().IsRegular() {
		return nil, errors.Join(fmt.Errorf("read objects: %s is no longer a regular file", name), file.Close())
	}
	return contentOf(file)
}

func readFile(name string) ([]byte, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return contentOf(file)
}

// contentOf reads a file and closes it.
func contentOf(file *os.File) ([]byte, error) {
	defer func() { _ = file.Close() }() // opened for reading
	data, err := limited(file)
	if err != nil {
		return nil, fmt.Errorf("read objects: %w", err)
	}
	return data, nil
}

// limited reads up to one byte more than a file may have, so that Decode can tell that it is too long.
func limited(r io.Reader) ([]byte, error) { return io.ReadAll(io.LimitReader(r, maxFile+1)) }
