package store

import (
	"bytes"
	"context"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// calls is a Builder that writes down what it is called with.
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

// fixture is a folder and a Dir that is stepped by hand, with a time of its own.
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
	f.dir.folder = newFolder(f.path, f.dir.settle)
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

// look lets the Dir look once, after some time.
func (f *fixture) look(later time.Duration) []string {
	f.now = f.now.Add(later)
	f.dir.step(f.now)
	return f.calls.take()
}

// settled lets the Dir see what changed and then read it.
func (f *fixture) settled() []string {
	return append(f.look(0), f.look(defaultSettle)...)
}

func (f *fixture) expect(what string, got []string, want ...string) {
	f.t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		f.t.Errorf("%s: calls (-want +got):\n%s", what, diff)
	}
}

// expectProblems wants one problem per text, each containing it.
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

const broken = "type: Service\nname: [\n"

func TestDirFollowsFolder(t *testing.T) {
	f := newFixture(t)
	f.write("mesh.yaml", "type: Mesh\nname: default\n")
	f.write("a.yml", service("a")+"---\n"+service("b"))
	f.write("c.json", `{"type": "Service", "name": "c"}`)
	f.write("notes.txt", "no object")
	f.write(".hidden.yaml", broken)
	if err := os.Mkdir(filepath.Join(f.path, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.expect("before anything has settled", f.look(0))
	f.expect("start", f.look(defaultSettle),
		"set Mesh  default", "set Service default a", "set Service default b", "set Service default c", "synced")
	f.expect("nothing changed", f.settled())

	f.write("a.yml", service("a")+"protocol: http\n---\n"+service("b"))
	f.expect("one of two objects changed", f.settled(), "set Service default a")
	f.write("a.yml", "# a comment\n"+service("b")+"---\n"+service("a")+"protocol: http\n")
	f.expect("comment and order changed", f.settled())
	f.write("a.yml", service("b"))
	f.expect("an object left its file", f.settled(), "delete Service default a")
	f.remove("a.yml")
	f.expect("file removed", f.settled(), "delete Service default b")
	f.write("c.json", "# nothing for now\n")
	f.expect("file of comments", f.settled(), "delete Service default c")
	f.expectProblems("end")
}

func TestDirSyncedWithoutFiles(t *testing.T) {
	f := newFixture(t)
	f.expect("empty folder", f.look(0), "synced")
}

func TestDirKeepsLastGoodContent(t *testing.T) {
	tests := map[string]struct {
		text    string
		problem string
	}{
		"broken YAML":                  {broken, "bad.yaml, document 1, line "},
		"unknown field":                {service("a") + "colour: red\n", "bad.yaml, document 1, line 3: colour: is an unknown field"},
		"empty":                        {"", "bad.yaml: is empty: its objects stay"},
		"one of two documents is bad":  {service("a") + "protocol: http\n---\ntype: Service\n", "bad.yaml, document 2, line 5: name: is missing"},
		"an object of another file":    {service("other"), `bad.yaml, document 1, line 2: name: "other": must be unique: the Service of mesh "default" with this name is in `},
		"an unknown mesh":              {serviceOf("nowhere", "a"), `bad.yaml, document 1, line 2: mesh: "nowhere": must be the name of a Mesh: default`},
		"the same object twice in one": {service("a") + "---\n" + service("a"), `bad.yaml, document 2, line 5: name: "a": must be unique`},
		"too large":                    {"# " + strings.Repeat("x", maxFile) + "\n" + service("a"), "bad.yaml: a file may have at most 8 MiB"},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			good := service("a") + "---\n" + service("b")
			f.write("bad.yaml", good)
			f.write("other.yaml", service("other"))
			f.settled()

			f.write("bad.yaml", tc.text)
			f.expect("bad content", f.settled())
			f.expectProblems("bad content", tc.problem)
			f.look(defaultRescan)
			if n := strings.Count(f.log.String(), "object file has a problem"); n != 1 {
				t.Errorf("the problem was logged %d times, want once:\n%s", n, f.log.String())
			}

			f.write("other.yaml", service("other")+"protocol: http\n")
			f.expect("another file still works", f.settled(), "set Service default other")
			f.write("bad.yaml", good+"protocol: grpc\n")
			f.expect("corrected", f.settled(), "set Service default b")
			f.expectProblems("corrected")
			if !strings.Contains(f.log.String(), "object file has no error any more") {
				t.Errorf("log does not tell that the file is good again:\n%s", f.log.String())
			}
		})
	}
}

func TestDirStartsWithBrokenFile(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a")+"---\ntype: Service\n---\n"+service("c"))
	f.write("b.yaml", service("b"))
	f.expect("good documents of the broken file", f.settled(),
		"set Service default a", "set Service default b", "set Service default c", "synced")
	f.expectProblems("start", "a.yaml, document 2, line 4: name: is missing")
	f.write("a.yaml", service("c")+"---\ntype: Service\n")
	f.expect("never good: still what is good of it", f.settled(), "delete Service default a")
	f.write("a.yaml", service("a")+"---\n"+service("c"))
	f.expect("corrected", f.settled(), "set Service default a")
}

func TestDirWaitsUntilFileHasSettled(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a")+"---\n"+service("b"))
	f.settled()

	f.write("a.yaml", service("a"))
	f.expect("first half seen", f.look(0))
	f.expect("not settled", f.look(defaultSettle/2))
	f.write("a.yaml", service("a")+"---\n"+service("b")+"---\n"+service("c"))
	f.expect("second half seen", f.look(defaultSettle/2))
	f.expect("not settled since the second", f.look(defaultSettle/2))
	f.expect("settled", f.look(defaultSettle/2), "set Service default c")
}

func TestDirReportsFileThatKeepsChanging(t *testing.T) {
	f := newFixture(t)
	f.write("quiet.yaml", service("quiet"))
	text := service("busy")
	for range 2 * patience {
		f.write("busy.yaml", text)
		text += "#\n"
		f.look(defaultSettle * 6 / 10)
	}
	if _, ok := f.calls.held[mesh.Key{Kind: mesh.KindService, Mesh: "default", Name: "quiet"}]; !ok {
		t.Error("the other file was not read")
	}
	f.expectProblems("busy", "busy.yaml: keeps changing")
	f.remove("quiet.yaml")
	f.write("busy.yaml", text+"#\n")
	f.expect("removal does not wait for ever", f.settled(), "set Service default busy", "delete Service default quiet")
	f.expectProblems("end")
}

func TestDirMovesObjectBetweenFiles(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a"))
	f.settled()
	if err := os.Rename(filepath.Join(f.path, "a.yaml"), filepath.Join(f.path, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	f.expect("file renamed", f.settled())

	f.write("c.yaml", service("a")+"protocol: http\n")
	f.expect("a copy elsewhere is not used", f.settled())
	f.expectProblems("copy", `c.yaml, document 1, line 2: name: "a": must be unique: the Service of mesh "default" with this name is in `)
	f.remove("b.yaml")
	f.expect("until the first is gone", f.settled(), "set Service default a")
	f.expectProblems("end")
}

func TestDirRemovalWaitsForNewFile(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a"))
	f.settled()
	f.remove("a.yaml")
	f.look(0)
	f.write("b.yaml", service("a")+"protocol: http\n")
	f.look(defaultSettle / 2)
	f.expect("old file settled as gone, new one not read", f.look(defaultSettle/2))
	f.expect("both", f.look(defaultSettle/2), "set Service default a")
}

func TestDirMeshGoes(t *testing.T) {
	tests := map[string]struct {
		start, then map[string]string // an empty text removes the file
		want        []string
		problem     string
	}{
		"a Mesh in use is removed": {
			start:   map[string]string{"m.yaml": "type: Mesh\nname: prod\n", "s.yaml": serviceOf("prod", "s")},
			then:    map[string]string{"m.yaml": ""},
			problem: `mesh: "prod": must be the name of a Mesh: default`,
		},
		"a first Mesh is not the one in use": {
			start:   map[string]string{"s.yaml": service("s")},
			then:    map[string]string{"m.yaml": "type: Mesh\nname: prod\n"},
			want:    []string{"set Mesh  default", "set Mesh  prod"},
			problem: `mesh: "default": must be the name of a Mesh: prod`,
		},
		"a Mesh that nothing uses is removed": {
			start: map[string]string{"m.yaml": "type: Mesh\nname: prod\n"},
			then:  map[string]string{"m.yaml": ""},
			want:  []string{"delete Mesh  prod"},
		},
		"a Mesh goes with all that uses it": {
			start: map[string]string{"m.yaml": "type: Mesh\nname: prod\n", "s.yaml": serviceOf("prod", "s")},
			then:  map[string]string{"m.yaml": "", "s.yaml": ""},
			want:  []string{"delete Service prod s", "delete Mesh  prod"},
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			f := newFixture(t)
			for file, text := range tc.start {
				f.write(file, text)
			}
			f.settled()
			for file, text := range tc.then {
				if text == "" {
					f.remove(file)
				} else {
					f.write(file, text)
				}
			}
			f.expect("then", f.settled(), tc.want...)
			if tc.problem == "" {
				f.expectProblems("then")
			} else {
				f.expectProblems("then", tc.problem)
			}
			f.expect("again", f.look(defaultRescan))
		})
	}
}

func TestDirUnreadableFileIsTriedAgain(t *testing.T) {
	if os.Getuid() == 0 {
		t.Skip("root reads every file")
	}
	f := newFixture(t)
	f.write("a.yaml", service("a"))
	if err := os.Chmod(filepath.Join(f.path, "a.yaml"), 0); err != nil {
		t.Fatal(err)
	}
	f.expect("unreadable", f.settled(), "synced")
	f.expectProblems("unreadable", "permission denied")
	if err := os.Chmod(filepath.Join(f.path, "a.yaml"), 0o600); err != nil {
		t.Fatal(err)
	}
	f.look(defaultRescan)
	f.expect("readable", f.look(defaultSettle), "set Service default a")
	f.expectProblems("readable")
}

func TestDirFolderGoes(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a"))
	f.settled()
	away := f.path + ".away"
	if err := os.Rename(f.path, away); err != nil {
		t.Fatal(err)
	}
	f.expect("folder is away", f.settled())
	f.expectProblems("folder is away", "no such file or directory")
	if err := os.Rename(away, f.path); err != nil {
		t.Fatal(err)
	}
	f.expect("folder is back", f.settled())
	f.expectProblems("folder is back")
}

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

// await waits for a call.
func (c *calls) await(t *testing.T, want string) {
	t.Helper()
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	deadline := time.After(10 * time.Second)
	for {
		c.mu.Lock()
		found := slices.Contains(c.log, want)
		c.mu.Unlock()
		if found {
			return
		}
		select {
		case <-deadline:
			t.Fatalf("no call %q, but %q", want, c.take())
		case <-tick.C:
		}
	}
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

// TestDirRunFollowsConfigMap swaps files as the kubelet does: a.yaml is a link to ..data/a.yaml, and ..data one to a
// folder that is replaced.
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

func TestDirRunWatchesFolderThatTakesTheNextOnesPlace(t *testing.T) {
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

func TestDirRunNeedsFolder(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.yaml")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{file: "is not a folder", file + ".none": "no such file"} {
		err := NewDir(DirOptions{Path: path, Builder: &calls{}}).Run(t.Context())
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Run() on %s = %v, want %q", path, err, want)
		}
	}
}

func TestDirCountsProblems(t *testing.T) {
	f := newFixture(t)
	registry := prometheus.NewRegistry()
	registry.MustRegister(f.dir.metric)
	count := func() map[string]float64 {
		t.Helper()
		families, err := registry.Gather()
		if err != nil {
			t.Fatal(err)
		}
		counts := map[string]float64{}
		for _, family := range families {
			for _, m := range family.GetMetric() {
				counts[family.GetName()+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
			}
		}
		return counts
	}
	f.write("a.yaml", "type: Mesh\nname: default\nrouting: {}\n---\n"+broken)
	f.settled()
	if diff := cmp.Diff(map[string]float64{"sonde_store_problems error": 1, "sonde_store_problems warning": 1}, count()); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
	f.write("a.yaml", "type: Mesh\nname: default\n")
	f.settled()
	if diff := cmp.Diff(map[string]float64{"sonde_store_problems error": 0, "sonde_store_problems warning": 0}, count()); diff != "" {
		t.Errorf("metric (-want +got):\n%s", diff)
	}
}
