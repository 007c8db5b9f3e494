package archive_test

import (
	"archive/tar"
	"errors"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/sonde-mesh/sonde/deploy/image/archive"
)

var files = []archive.File{
	{Path: "/usr/bin/program", Mode: 0o755, Content: []byte("program")},
	{Path: "/etc/passwd", Mode: 0o644, Content: []byte("root")},
	{Path: "/tmp", Mode: fs.ModeDir | fs.ModeSticky | 0o777},
	{Path: "/lib", Mode: fs.ModeSymlink | 0o777, Content: []byte("usr/lib")},
}

func layer(t *testing.T, files []archive.File) v1.Layer {
	t.Helper()
	l, err := archive.Layer(files)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestLayer(t *testing.T) {
	r, err := layer(t, files).Uncompressed()
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		"etc/ drwxr-xr-x", "etc/passwd -rw-r--r--", "lib Lrwxrwxrwx", "tmp/ dtrwxrwxrwx", "usr/ drwxr-xr-x", "usr/bin/ drwxr-xr-x", "usr/bin/program -rwxr-xr-x",
	}
	var got []string
	for in := tar.NewReader(r); ; {
		header, err := in.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, header.Name+" "+header.FileInfo().Mode().String())
		if header.ModTime.Unix() != 0 || header.Uid != 0 || header.Gid != 0 || header.Uname != "" {
			t.Errorf("%s has time %s and owner %d:%d %q, want nothing of this machine", header.Name, header.ModTime, header.Uid, header.Gid, header.Uname)
		}
	}
	if !slices.Equal(got, want) {
		t.Errorf("layer has %q, want %q", got, want)
	}
}

func TestLayerDigest(t *testing.T) {
	digest := func(files []archive.File) string {
		d, err := layer(t, files).Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d.String()
	}
	backwards := slices.Clone(files)
	slices.Reverse(backwards)
	if digest(files) != digest(backwards) {
		t.Error("the order of files changes the digest")
	}
	changed := slices.Clone(files)
	changed[0].Content = []byte("Program")
	if digest(files) == digest(changed) {
		t.Error("another content does not change the digest")
	}
}

func TestLayerFaults(t *testing.T) {
	tests := map[string]struct {
		files []archive.File
		want  string
	}{
		"relative":     {[]archive.File{{Path: "etc/passwd"}}, `path "etc/passwd"`},
		"not clean":    {[]archive.File{{Path: "/etc/../passwd"}}, `path "/etc/../passwd"`},
		"twice":        {[]archive.File{{Path: "/a"}, {Path: "/a"}}, "the path /a is twice"},
		"below a link": {[]archive.File{{Path: "/lib", Mode: fs.ModeSymlink, Content: []byte("usr/lib")}, {Path: "/lib/x"}}, "/lib/x is below /lib"},
		"device":       {[]archive.File{{Path: "/dev/null", Mode: fs.ModeDevice}}, "not supported"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			if _, err := archive.Layer(tc.files); err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Layer() error = %v, want one with %q", err, tc.want)
			}
		})
	}
}

func TestWrite(t *testing.T) {
	image, err := archive.Image(v1.Config{User: "5678"}, layer(t, files))
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "bin", "image.tar")
	if err := archive.Write(path, "docker.io/sonde-mesh/sonde:dev", image); err != nil {
		t.Fatal(err)
	}
	read, err := tarball.ImageFromPath(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	config, err := read.ConfigFile()
	if err != nil || config.OS != "linux" || config.Architecture == "" || config.Config.User != "5678" || config.Created.Unix() != 0 {
		t.Errorf("ConfigFile() = %+v, %v, want linux, an architecture, user 5678 and no time", config, err)
	}
	if err := archive.Write(path, "sonde:dev", image); err == nil {
		t.Error("Write() under a tag without a registry: error = nil")
	}
}

// TestWriteAll writes two images with a layer in common, one of them under two tags.
func TestWriteAll(t *testing.T) {
	common := layer(t, files)
	images := map[string]v1.Image{}
	for tag, user := range map[string]string{"docker.io/test/a:1": "1", "docker.io/test/a:2": "1", "docker.io/test/b:1": "2"} {
		image, err := archive.Image(v1.Config{User: user}, common)
		if err != nil {
			t.Fatal(err)
		}
		images[tag] = image
	}
	path := filepath.Join(t.TempDir(), "images.tar")
	if err := archive.WriteAll(path, images); err != nil {
		t.Fatal(err)
	}
	for tag, want := range images {
		reference, err := name.NewTag(tag)
		if err != nil {
			t.Fatal(err)
		}
		read, err := tarball.ImageFromPath(path, &reference)
		if err != nil {
			t.Fatal(err)
		}
		got, errGot := read.ConfigName()
		name, errWant := want.ConfigName()
		if err := errors.Join(errGot, errWant); err != nil || got != name {
			t.Errorf("%s is %s, %v, want %s", tag, got, err, name)
		}
	}
}
