// Package store tests package store with directories that the kernel watches, and with unreadable and unwritable
// files.
package store

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// calls is a store.Builder that records its calls for Services.
type calls struct {
	mu  sync.Mutex
	all []string
}

func (c *calls) note(call, name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.all = append(c.all, call+" "+name)
}

func (c *calls) Set(_ string, o mesh.Object)   { c.note("set", o.Key().Name) }
func (c *calls) Delete(_ string, key mesh.Key) { c.note("delete", key.Name) }
func (c *calls) Synced(source string)          { c.note("synced", source) }

func must(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// write writes a file with a Service.
func write(t *testing.T, path, name string) {
	t.Helper()
	must(t, os.WriteFile(path, []byte("type: Service\nname: "+name+"\n"), 0o600))
}

// follow runs a Dir on a directory until the test ends.
func follow(t *testing.T, path string, rescan time.Duration) (*store.Dir, *calls) {
	t.Helper()
	c := &calls{}
	d := store.NewDir(store.DirOptions{Path: path, Builder: c, Source: "files", Rescan: rescan})
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

// await waits for a call.
func (c *calls) await(t *testing.T, want string) {
	t.Helper()
	wait.Until(t, "call "+want, func() error {
		c.mu.Lock()
		defer c.mu.Unlock()
		if !slices.Contains(c.all, want) {
			return fmt.Errorf("but %q", c.all)
		}
		return nil
	})
}

// TestDirIsToldOfChanges changes a file in each way that editors use. Only file events cause scans.
func TestDirIsToldOfChanges(t *testing.T) {
	path := t.TempDir()
	_, c := follow(t, path, time.Hour)
	c.await(t, "synced files")
	file, next := filepath.Join(path, "a.yaml"), filepath.Join(path, "new")
	write(t, file, "a")
	c.await(t, "set a")
	write(t, next, "b")
	must(t, os.Rename(next, file))
	c.await(t, "set b")
	c.await(t, "delete a")
	must(t, os.Remove(file))
	c.await(t, "delete b")
}

// TestDirFollowsConfigMap replaces files as the kubelet does: a.yaml is a link to ..data/a.yaml, and ..data is a link
// to a directory that is replaced.
func TestDirFollowsConfigMap(t *testing.T) {
	path := t.TempDir()
	publish := func(version, name string) {
		t.Helper()
		must(t, os.Mkdir(filepath.Join(path, version), 0o700))
		write(t, filepath.Join(path, version, "a.yaml"), name)
		must(t, os.Symlink(version, filepath.Join(path, "..data_tmp")))
		must(t, os.Rename(filepath.Join(path, "..data_tmp"), filepath.Join(path, "..data")))
	}
	publish("..1", "a")
	must(t, os.Symlink(filepath.Join("..data", "a.yaml"), filepath.Join(path, "a.yaml")))
	_, c := follow(t, path, time.Hour)
	c.await(t, "set a")
	publish("..2", "b")
	c.await(t, "set b")
}

func TestDirFollowsTheDirectoryThatTakesTheNextOnesPlace(t *testing.T) {
	top := t.TempDir()
	path := filepath.Join(top, "store")
	for _, version := range []string{"1", "2"} {
		must(t, os.Mkdir(filepath.Join(top, version), 0o700))
		write(t, filepath.Join(top, version, "a.yaml"), "a"+version)
	}
	must(t, os.Symlink("1", path))
	_, c := follow(t, path, 10*time.Millisecond)
	c.await(t, "set a1")
	must(t, os.Symlink("2", path+".new"), os.Rename(path+".new", path))
	c.await(t, "set a2")
	c.await(t, "delete a1")
}

func TestUnreadableFileIsTriedAgain(t *testing.T) {
	asNobody(t, func(t *testing.T) {
		path := t.TempDir()
		file := filepath.Join(path, "a.yaml")
		write(t, file, "a")
		must(t, os.Chmod(file, 0))
		d, c := follow(t, path, 10*time.Millisecond)
		c.await(t, "synced files")
		if all := d.Problems(); len(all) != 1 || !strings.Contains(all[0].Error(), "permission denied") {
			t.Errorf("problems = %v", all)
		}
		must(t, os.Chmod(file, 0o600))
		c.await(t, "set a")
		wait.For(t, "no problem", func() bool { return len(d.Problems()) == 0 })
	})
}

func TestStateCheckFindsReadOnlyDirectory(t *testing.T) {
	asNobody(t, func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "state")
		s, err := store.OpenState(path)
		must(t, err)
		defer func() { _ = s.Close() }()
		must(t, os.Chmod(path, 0o500))
		defer func() { _ = os.Chmod(path, 0o700) }() // allows the cleanup to remove it
		if err := s.Check(); !errors.Is(err, fs.ErrPermission) {
			t.Errorf("Check() = %v, want fs.ErrPermission", err)
		}
	})
}
