// Package archive builds container images from files, without a base image or a container engine. Equal files give an
// image with the same digest: times, owners and order do not depend on the machine.
package archive

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// epoch is the time of all files in an image.
var epoch = time.Unix(0, 0).UTC()

// File is a file of a layer, owned by root.
type File struct {
	// Path is absolute in the image and clean, such as /usr/bin/envoy. Its directories are made, with mode 0755.
	Path string
	// Mode has the permissions, the sticky bit, and fs.ModeDir for a directory or fs.ModeSymlink for a link.
	Mode fs.FileMode
	// Content of a regular file, or the target of a link.
	Content []byte
}

// Layer returns a layer with these files. Duplicate paths, and paths that are not absolute and clean, are errors.
func Layer(files []File) (v1.Layer, error) {
	all := map[string]File{}
	for _, f := range files {
		if !path.IsAbs(f.Path) || path.Clean(f.Path) != f.Path || f.Path == "/" {
			return nil, fmt.Errorf("path %q of a file in an image is not absolute and clean", f.Path)
		}
		if _, ok := all[f.Path]; ok {
			return nil, fmt.Errorf("the path %s is twice in a layer", f.Path)
		}
		all[f.Path] = f
	}
	for _, f := range files {
		for parent := path.Dir(f.Path); parent != "/"; parent = path.Dir(parent) {
			if has, ok := all[parent]; ok && !has.Mode.IsDir() {
				return nil, fmt.Errorf("%s is below %s, which is no directory", f.Path, parent)
			} else if !ok {
				all[parent] = File{Path: parent, Mode: fs.ModeDir | 0o755}
			}
		}
	}
	var text bytes.Buffer
	w := tar.NewWriter(&text)
	for _, p := range slices.Sorted(maps.Keys(all)) { // a directory sorts before its files
		if err := write(w, all[p]); err != nil {
			return nil, fmt.Errorf("write %s into a layer: %w", p, err)
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(text.Bytes())), nil
	}, tarball.WithCompressedCaching)
}

func write(w *tar.Writer, f File) error {
	header := &tar.Header{Name: strings.TrimPrefix(f.Path, "/"), Mode: int64(f.Mode.Perm()), ModTime: epoch,
		Format: tar.FormatUSTAR}
	if f.Mode&fs.ModeSticky != 0 {
		header.Mode |= 0o1000
	}
	switch f.Mode.Type() {
	case fs.ModeDir:
		header.Typeflag, header.Name = tar.TypeDir, header.Name+"/"
	case fs.ModeSymlink:
		header.Typeflag, header.Linkname = tar.TypeSymlink, string(f.Content)
	case 0:
		header.Typeflag, header.Size = tar.TypeReg, int64(len(f.Content))
	default:
		return fmt.Errorf("files of mode %s are not supported", f.Mode)
	}
	if err := w.WriteHeader(header); err != nil {
		return err
	}
	if header.Typeflag != tar.TypeReg {
		return nil
	}
	_, err := w.Write(f.Content)
	return err
}

// Image returns an image for Linux on this machine's architecture.
func Image(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	image, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		return nil, fmt.Errorf("append layers: %w", err)
	}
	file, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Created, file.Config = "linux", runtime.GOARCH, v1.Time{Time: epoch}, config
	for i := range file.History {
		file.History[i] = v1.History{Created: v1.Time{Time: epoch}}
	}
	return mutate.ConfigFile(image, file)
}

// Write writes an image under a tag such as docker.io/sonde-mesh/sonde:dev into a file: see WriteAll.
func Write(file, tag string, image v1.Image) error {
	return WriteAll(file, map[string]v1.Image{tag: image})
}

// WriteAll writes images, by their tags, into a file for `docker load` and `ctr images import`, each layer once. It
// creates the file atomically.
func WriteAll(file string, images map[string]v1.Image) error {
	references := map[name.Tag]v1.Image{}
	for tag, image := range images {
		reference, err := name.NewTag(tag, name.StrictValidation)
		if err != nil {
			return fmt.Errorf("read the tag: %w", err)
		}
		references[reference] = image
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o750); err != nil {
		return err
	}
	if err := tarball.MultiWriteToFile(file+".new", references); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	return os.Rename(file+".new", file)
}
