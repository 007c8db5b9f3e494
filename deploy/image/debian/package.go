// Package debian reads files of the packages of Debian and Ubuntu, without installing them.
package debian

import (
	"archive/tar"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
)

// Package is the content of a package, without directories. Files in /lib of packages from before the merge of /lib
// into /usr/lib are in /usr/lib here, and likewise for other merged directories.
type Package struct {
	Name string
	// Files has files and links by path.
	Files map[string]archive.File
}

// mergedDirectories are links to their counterparts below /usr, as in every release since the merge.
var mergedDirectories = []string{"/bin", "/lib", "/lib32", "/lib64", "/libx32", "/sbin"}

// merged returns a path below /usr instead of below one of the merged directories.
func merged(p string) string {
	for _, directory := range mergedDirectories {
		if strings.HasPrefix(p, directory+"/") {
			return "/usr" + p
		}
	}
	return p
}

// Read reads the tar with the files of a package.
func Read(name string, in io.Reader) (*Package, error) {
	p := &Package{Name: name, Files: map[string]archive.File{}}
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
		p.Files[file.Path] = file
	}
}

// File returns a file or link by its path.
func (p *Package) File(name string) (archive.File, error) {
	f, ok := p.Files[name]
	if !ok {
		return f, fmt.Errorf("package %s has no %s", p.Name, name)
	}
	return f, nil
}

// Links returns the links to directories below /usr that an image with these files needs.
func Links(files []archive.File) (links []archive.File) {
	for _, directory := range mergedDirectories {
		if slices.ContainsFunc(files, func(f archive.File) bool { return strings.HasPrefix(f.Path, "/usr"+directory+"/") }) {
			links = append(links, archive.File{Path: directory, Mode: fs.ModeSymlink | 0o777,
				Content: []byte("usr" + directory)})
		}
	}
	return links
}
