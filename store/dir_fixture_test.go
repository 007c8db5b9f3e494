package store

import (
	"bytes"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// calls is a Builder that records its calls.
type calls struct {
	mu   sync.Mutex
	log  []string
	held map[mesh.Key]mesh.Object
}

func (c *calls) add(source, call string, k mesh.Key) {
	if source != "files" {
		call += " from " + source
	}
	c.log = append(c.log, strings.TrimSpace(strings.Join([]string{call, string(k.Kind), k.Mesh, k.Name}, " ")))
}

func (c *calls) Set(source string, o mesh.Object) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(source, "set", o.Key())
	if c.held == nil {
		c.held = map[mesh.Key]mesh.Object{}
	}
	c.held[o.Key()] = o
}

func (c *calls) Delete(source string, k mesh.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(source, "delete", k)
	delete(c.held, k)
}

func (c *calls) Synced(source string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.add(source, "synced", mesh.Key{})
}

// take returns the calls since the last take.
func (c *calls) take() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	taken := c.log
	c.log = nil
	return taken
}

// fixture is a directory and a Dir that the test steps by hand, with a clock of its own.
type fixture struct {
	t     *testing.T
	path  string
	calls *calls
	dir   *Dir
	now   time.Time
	log   bytes.Buffer
}

func newFixture(t *testing.T) *fixture {
	f := &fixture{t: t, path: t.TempDir(), calls: &calls{}, now: time.Now()}
	f.dir = NewDir(DirOptions{
		Path: f.path, Builder: f.calls, Source: "files",
		Logger: slog.New(slog.NewTextHandler(&f.log, nil)),
	})
	f.dir.directory = newDirectory(f.path, settle)
	return f
}

func (f *fixture) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.path, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) remove(name string) {
	f.t.Helper()
	if err := os.Remove(filepath.Join(f.path, name)); err != nil {
		f.t.Fatal(err)
	}
}

// look makes the Dir scan once, after that time.
func (f *fixture) look(later time.Duration) []string {
	f.now = f.now.Add(later)
	f.dir.poll(f.now)
	return f.calls.take()
}

// settled makes the Dir scan twice, so that it sees changes and then reads them.
func (f *fixture) settled() []string {
	return append(f.look(0), f.look(settle)...)
}

func (f *fixture) expect(what string, got []string, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("%s: calls (-want +got):\n%s", what, diff)
	}
}

// expectProblems checks that there is one problem for each text, and that it contains the text.
func (f *fixture) expectProblems(what string, want ...string) {
	f.t.Helper()
	got := f.dir.Problems()
	ok := len(got) == len(want)
	for i := range min(len(got), len(want)) {
		ok = ok && strings.Contains(strings.ReplaceAll(got[i].Error(), f.path+"/", ""), want[i])
	}
	if !ok {
		f.t.Errorf("%s: problems = %v, want %q", what, got, want)
	}
}

func service(name string) string { return "type: Service\nname: " + name + "\n" }

func serviceOf(meshName, name string) string {
	return "type: Service\nmesh: " + meshName + "\nname: " + name + "\n"
}
