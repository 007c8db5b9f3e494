package store

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/internal/waittest"
)

// running is a Dir that runs in the background until the test ends.
func running(t *testing.T, path string, rescan time.Duration) (*Dir, *calls) {
	t.Helper()
	c := &calls{}
	d := NewDir(DirOptions{Path: path, Builder: c, Source: "files", Registerer: prometheus.NewRegistry()})
	d.settle, d.rescan = 5*time.Millisecond, rescan
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("Run() = %v", err)
		}
	})
	return d, c
}

// await waits for a call of the builder.
func (c *calls) await(t *testing.T, want string) {
	t.Helper()
	waittest.Until(t, 10*time.Second, "call "+want, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !slices.Contains(c.log, want) {
			return fmt.Errorf("but %q", c.log)
		}
		return nil
	})
}

func TestDirRunIsToldOfChanges(t *testing.T) {
	path := t.TempDir()
	_, c := running(t, path, time.Hour)
	c.await(t, "synced")
	file := filepath.Join(path, "a.yaml")
	if err := os.WriteFile(file, []byte(service("a")), 0o600); err != nil {
		t.Fatal(err)
	}
	c.await(t, "set Service default a")
	if err := os.WriteFile(filepath.Join(path, "new"), []byte(service("b")), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(path, "new"), file); err != nil {
		t.Fatal(err)
	}
	c.await(t, "set Service default b")
	c.await(t, "delete Service default a")
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	c.await(t, "delete Service default b")
}

// TestDirRunFollowsConfigMap replaces files as the kubelet does: a.yaml is a link to ..data/a.yaml, and ..data is a link to
// a directory that is replaced.
func TestDirRunFollowsConfigMap(t *testing.T) {
	path := t.TempDir()
	publish := func(version, text string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(path, version), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(path, version, "a.yaml"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(version, filepath.Join(path, "..data_tmp")); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(filepath.Join(path, "..data_tmp"), filepath.Join(path, "..data")); err != nil {
			t.Fatal(err)
		}
	}
	publish("..1", service("a"))
	if err := os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(path, "a.yaml")); err != nil {
		t.Fatal(err)
	}
	_, c := running(t, path, time.Hour)
	c.await(t, "set Service default a")
	publish("..2", service("b"))
	c.await(t, "set Service default b")
}

func TestDirRunWatchesDirectoryThatTakesTheNextOnesPlace(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "store")
	for _, version := range []string{"1", "2"} {
		if err := os.Mkdir(filepath.Join(top, version), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(top, version, "a.yaml"), []byte(service("a"+version)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("1", path); err != nil {
		t.Fatal(err)
	}
	_, c := running(t, path, 10*time.Millisecond)
	c.await(t, "set Service default a1")
	if err := os.Symlink("2", path+".new"); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		t.Fatal(err)
	}
	c.await(t, "set Service default a2")
	c.await(t, "delete Service default a1")
}

func TestDirRunNeedsDirectory(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "is not a directory", file + ".none": "no such file"} {
		err := NewDir(DirOptions{Path: path, Builder: &calls{}}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() on %s = %v, want %q", path, err, want)
		}
	}
}
