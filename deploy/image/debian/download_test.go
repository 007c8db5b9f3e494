package debian_test

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/sonde-mesh/sonde/deploy/image/debian"
)

// aptGet stands for apt-get: package a depends on b. It writes down each download.
const aptGet = `#!/bin/sh
case "$*" in
*--print-uris*install*) set -- a b ;;
*--print-uris*download*) shift 3 ;;
*download*) shift 2; echo "$*" >>"$LOG"; for name; do echo "$name" >"${name}_1%3a2_all.deb"; done; exit ;;
esac
for name; do echo "'https://example.com/$name' ${name}_1%3a2_all.deb 1 SHA256:0"; done
`

// dpkgDeb makes a tar with the name of the package as a file.
const dpkgDeb = `#!/bin/sh
exec tar -cf - --transform="s,.*,./bin/$(cat "$2")," "$2" 2>/dev/null
`

func fakePrograms(t *testing.T) (log string) {
	t.Helper()
	directory := t.TempDir()
	for name, text := range map[string]string{"apt-get": aptGet, "dpkg-deb": dpkgDeb} {
		if err := os.WriteFile(filepath.Join(directory, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	log = filepath.Join(directory, "log")
	t.Setenv("PATH", directory+":"+os.Getenv("PATH"))
	t.Setenv("LOG", log)
	return log
}

// TestGetter gets a package, then it and what it depends on, which downloads each once.
func TestGetter(t *testing.T) {
	log := fakePrograms(t)
	var progress bytes.Buffer
	g := &debian.Getter{Cache: filepath.Join(t.TempDir(), "cache"), Progress: &progress}
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
	if text, err := os.ReadFile(log); err != nil || string(text) != "a\nb\n" {
		t.Errorf("downloaded %q, %v, want each package once", text, err)
	}
	if !strings.Contains(progress.String(), "getting b (once; into ") {
		t.Errorf("progress %q, want what is downloaded", progress.String())
	}
	if left, err := os.ReadDir(g.Cache); err != nil || len(left) != 2 {
		t.Errorf("the cache has %v, %v, want two packages", left, err)
	}
}
