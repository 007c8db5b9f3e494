package debian

import (
	"bytes"
	"debug/elf"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
)

// LibrariesOf returns the files of the package that a program needs: its loader, its libraries, and their libraries. A
// missing file is an error.
func (p *Package) LibrariesOf(program []byte) ([]archive.File, error) {
	found := map[string]archive.File{}
	add := func(f archive.File) (archive.File, error) {
		found[f.Path] = f
		for f.Mode.Type() == fs.ModeSymlink {
			target := string(f.Content)
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(f.Path), target)
			}
			var err error
			if f, err = p.File(merged(target)); err != nil {
				return f, err
			}
			found[f.Path] = f
		}
		return f, nil
	}
	loader, needed, err := Dynamic(program)
	if err != nil {
		return nil, err
	}
	start, err := p.File(merged(loader))
	if err != nil {
		return nil, err
	}
	if _, err := add(start); err != nil {
		return nil, err
	}
	for seen := map[string]bool{}; len(needed) > 0; {
		name := needed[0]
		needed = needed[1:]
		if seen[name] {
			continue
		}
		seen[name] = true
		library, err := p.library(name)
		if err != nil {
			return nil, err
		}
		if library, err = add(library); err != nil {
			return nil, err
		}
		_, more, err := Dynamic(library.Content)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", library.Path, err)
		}
		needed = append(needed, more...)
	}
	files := slices.Collect(maps.Values(found))
	return append(files, Links(files)...), nil
}

// library finds a library by name in the loader's directories.
func (p *Package) library(name string) (archive.File, error) {
	for _, file := range slices.Sorted(maps.Keys(p.Files)) {
		directory := path.Dir(file)
		if path.Base(file) == name && path.Dir(directory) == "/usr/lib" && strings.HasSuffix(directory, "-linux-gnu") {
			return p.Files[file], nil
		}
		if path.Base(file) == name && slices.Contains(mergedDirectories, strings.TrimPrefix(directory, "/usr")) {
			return p.Files[file], nil // the loader itself, which libraries may also need
		}
	}
	return archive.File{}, fmt.Errorf("package %s has no library %s", p.Name, name)
}

// Dynamic returns a program's loader, "" for a library, and the libraries that it needs.
func Dynamic(binary []byte) (loader string, libraries []string, err error) {
	file, err := elf.NewFile(bytes.NewReader(binary))
	if err != nil {
		return "", nil, err
	}
	for _, segment := range file.Progs {
		if segment.Type == elf.PT_INTERP {
			text, err := io.ReadAll(segment.Open())
			if err != nil {
				return "", nil, err
			}
			loader = string(bytes.TrimRight(text, "\x00"))
		}
	}
	libraries, err = file.ImportedLibraries()
	return loader, libraries, err
}
