package debian_test

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/deploy/image/debian"
)

// debianTools replaces apt-get and dpkg-deb. Package a depends on b.
type debianTools struct{ downloaded []string }

func (d *debianTools) run(_ context.Context, directory, program string, args ...string) ([]byte, error) {
	names := args[slices.Index(args, "download")+1:]
	switch {
	case program == "dpkg-deb":
		return contentOf(args[1])
	case slices.Contains(args, "install"):
		names = []string{"a", "b"}
	case !slices.Contains(args, "--print-uris"):
		for _, name := range names {
			d.downloaded = append(d.downloaded, name)
			if err := os.WriteFile(filepath.Join(directory, name+"_1%3a2_all.deb"), []byte(name), 0o600); err != nil {
				return nil, err
			}
		}
		return nil, nil
	}
	var out bytes.Buffer
	for _, name := range names {
		fmt.Fprintf(&out, "'https://example.com/%[1]s' %[1]s_1%%3a2_all.deb 1 SHA256:0\n", name)
	}
	return out.Bytes(), nil
}

// contentOf returns a tar with the name of a package as a program.
func contentOf(file string) ([]byte, error) {
	name, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	var content bytes.Buffer
	w := tar.NewWriter(&content)
	if err := w.WriteHeader(&tar.Header{Name: "./bin/" + string(name), Mode: 0o755, Typeflag: tar.TypeReg}); err != nil {
		return nil, err
	}
	return content.Bytes(), w.Close()
}

// TestGetter gets a package, then the package with its dependencies, and downloads each once.
func TestGetter(t *testing.T) {
	var apt debianTools
	var progress bytes.Buffer
	g := &debian.Getter{Cache: filepath.Join(t.TempDir(), "cache"), Progress: &progress, Run: apt.run}
	if _, err := g.Get(t.Context(), "a"); err != nil {
		t.Fatal(err)
	}
	packages, err := g.WithDependencies(t.Context(), "a")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range packages {
		got = append(got, p.Name)
		if _, err := p.File("/usr/bin/" + p.Name); err != nil {
			t.Error(err)
		}
	}
	if want := []string{"a", "b"}; !slices.Equal(got, want) {
		t.Errorf("WithDependencies() = %q, want %q", got, want)
	}
	if want := []string{"a", "b"}; !slices.Equal(apt.downloaded, want) {
		t.Errorf("downloaded %q, want each package once", apt.downloaded)
	}
	if !strings.Contains(progress.String(), "getting b (once; into ") {
		t.Errorf("progress %q, want what is downloaded", progress.String())
	}
	if left, err := os.ReadDir(g.Cache); err != nil || len(left) != 2 {
		t.Errorf("the cache has %v, %v, want two packages", left, err)
	}
}
