package main

import (
	"archive/tar"
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
)

// Packages of the distribution.
const (
	libcPackage         = "libc6"
	certificatesPackage = "ca-certificates"
)

// debian is the content of a package of Debian or Ubuntu. Directories are left out. What a package of a release before the merge of
// /lib into /usr/lib has in /lib is in /usr/lib here.
type debian struct {
	name  string
	files map[string]archive.File
}

// mergedDirectories are links to their counterparts below /usr, as in every release since the merge.
var mergedDirectories = []string{"/lib", "/lib32", "/lib64", "/libx32"}

// merged returns a path below /usr instead of below one of the merged directories.
func merged(p string) string {
	for _, directory := range mergedDirectories {
		if strings.HasPrefix(p, directory+"/") {
			return "/usr" + p
		}
	}
	return p
}

// readPackage reads the tar with the files of a package.
func readPackage(name string, in io.Reader) (*debian, error) {
	p := &debian{name: name, files: map[string]archive.File{}}
	for r := tar.NewReader(in); ; {
		header, err := r.Next()
		if errors.Is(err, io.EOF) {
			return p, nil
		}
		if err != nil {
			return nil, fmt.Errorf("read package %s: %w", name, err)
		}
		file := archive.File{Path: merged(path.Clean("/" + header.Name)), Mode: header.FileInfo().Mode()}
		switch header.Typeflag {
		case tar.TypeSymlink:
			file.Content = []byte(header.Linkname)
		case tar.TypeReg:
			if file.Content, err = io.ReadAll(r); err != nil {
				return nil, fmt.Errorf("read %s of package %s: %w", file.Path, name, err)
			}
		default:
			continue
		}
		p.files[file.Path] = file
	}
}

func (p *debian) file(name string) (archive.File, error) {
	f, ok := p.files[name]
	if !ok {
		return f, fmt.Errorf("package %s has no %s", p.name, name)
	}
	return f, nil
}

// bundle returns all certificates of ca-certificates in one file. The package itself makes that only when it is installed.
func (p *debian) bundle() ([]byte, error) {
	var all bytes.Buffer
	for _, name := range slices.Sorted(maps.Keys(p.files)) {
		if strings.HasPrefix(name, "/usr/share/ca-certificates/mozilla/") && strings.HasSuffix(name, ".crt") {
			all.Write(bytes.TrimSpace(p.files[name].Content))
			all.WriteByte('\n')
		}
	}
	if all.Len() == 0 {
		return nil, fmt.Errorf("package %s has no certificates of mozilla", p.name)
	}
	return all.Bytes(), nil
}

// librariesOf returns the files of the package that a program needs: its loader, its libraries, and theirs. One that the package lacks is an
// error.
func (p *debian) librariesOf(program []byte) ([]archive.File, error) {
	found := map[string]archive.File{}
	add := func(f archive.File) (archive.File, error) {
		found[f.Path] = f
		for f.Mode.Type() == fs.ModeSymlink {
			target := string(f.Content)
			if !path.IsAbs(target) {
				target = path.Join(path.Dir(f.Path), target)
			}
			var err error
			if f, err = p.file(merged(target)); err != nil {
				return f, err
			}
			found[f.Path] = f
		}
		return f, nil
	}
	loader, needed, err := dynamic(program)
	if err != nil {
		return nil, err
	}
	start, err := p.file(merged(loader))
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
		_, more, err := dynamic(library.Content)
		if err != nil {
			return nil, fmt.Errorf("read %s: %w", library.Path, err)
		}
		needed = append(needed, more...)
	}
	files := slices.Collect(maps.Values(found))
	for _, directory := range mergedDirectories {
		if slices.ContainsFunc(files, func(f archive.File) bool { return strings.HasPrefix(f.Path, "/usr"+directory+"/") }) {
			files = append(files, archive.File{Path: directory, Mode: fs.ModeSymlink | 0o777, Content: []byte("usr" + directory)})
		}
	}
	return files, nil
}

// library finds a library by its name in the directories that the loader searches.
func (p *debian) library(name string) (archive.File, error) {
	for _, file := range slices.Sorted(maps.Keys(p.files)) {
		directory := path.Dir(file)
		if path.Base(file) == name && path.Dir(directory) == "/usr/lib" && strings.HasSuffix(directory, "-linux-gnu") {
			return p.files[file], nil
		}
		if path.Base(file) == name && slices.Contains(mergedDirectories, strings.TrimPrefix(directory, "/usr")) {
			return p.files[file], nil // the loader itself, which libraries name too
		}
	}
	return archive.File{}, fmt.Errorf("package %s has no library %s", p.name, name)
}

// dynamic returns the loader that a program names, "" for a library, and the libraries that it needs.
func dynamic(binary []byte) (loader string, libraries []string, err error) {
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
