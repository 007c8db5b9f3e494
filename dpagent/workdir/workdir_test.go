package workdir_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/workdir"
)

func TestOpenRefusesADirectoryOfOthers(t *testing.T) {
	path := t.TempDir()
	if err := os.Chmod(path, 0o755); err != nil {
		t.Fatal(err)
	}
	_, err := workdir.Open(path)
	if err == nil || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "755") {
		t.Errorf("Open() error = %v, want one that names directory and mode", err)
	}
	if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("Open() changed the directory: %v, %v", info, err)
	}
}

func TestDirectoryHasOneAgent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "work")
	d, err := workdir.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, harm := range []func() error{func() error { return nil }, func() error { return os.Remove(d.File("lock")) }} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		if second, err := workdir.Open(path); err == nil || !strings.Contains(err.Error(), "another agent uses it") {
			t.Errorf("Open() of a directory in use = %v, %v", second, err)
		}
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if d, err = workdir.Open(path); err != nil {
		t.Fatalf("Open() after it was closed: %v", err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

func TestWriteReplacesWholeFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in virtual time, so that no disk is too slow
		d, err := workdir.Open(filepath.Join(t.TempDir(), "work"))
		if err != nil {
			t.Fatal(err)
		}
		for _, content := range []string{"one", "two"} {
			if err := d.Write(mesh.FileIdentity, []byte(content)); err != nil {
				t.Fatal(err)
			}
			if got, err := os.ReadFile(d.File(mesh.FileIdentity)); err != nil || string(got) != content {
				t.Errorf("file = %q, %v, want %q", got, err, content)
			}
		}
		entries, err := os.ReadDir(filepath.Dir(d.File(mesh.FileIdentity)))
		if err != nil || len(entries) != 1 {
			t.Errorf("entries = %v, %v, want only the file", entries, err)
		}
		if info, err := os.Stat(d.File(mesh.FileIdentity)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("mode = %v, %v, want 0600", info, err)
		}
		if err := d.Close(); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(d.Path); err != nil {
			t.Errorf("the given directory was removed: %v", err)
		}
	})
}

func TestDirectoriesOfTheDeadAreRemoved(t *testing.T) {
	tmp := t.TempDir()
	t.Setenv("TMPDIR", tmp)
	alive, err := workdir.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = alive.Close() }()
	long := time.Now().Add(-time.Hour)
	for name, made := range map[string]time.Time{"sonde-dp-dead": long, "sonde-dp-new": time.Now(), "another": long} {
		if err := os.Mkdir(filepath.Join(tmp, name), 0o700); err != nil {
			t.Fatal(err)
		}
		file := filepath.Join(tmp, name, "lock")
		if err := errors.Join(os.WriteFile(file, nil, 0o600), os.Chtimes(file, made, made)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chtimes(alive.File("lock"), long, long); err != nil {
		t.Fatal(err)
	}
	second, err := workdir.Open("")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = second.Close() }()
	entries, err := os.ReadDir(tmp)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"another", filepath.Base(alive.Path), filepath.Base(second.Path), "sonde-dp-new"}
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("directories (-want +got):\n%s", diff)
	}
}
