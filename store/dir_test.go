package store

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/goleak"

	"github.com/sonde-mesh/sonde/api/mesh"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const broken = "type: Service\nname: [\n"

// A directory that cannot be listed keeps its objects, and says since when.
func TestDirLost(t *testing.T) {
	f := newFixture(t)
	lost := func(what string, since time.Time, missing bool) {
		t.Helper()
		got, err := f.dir.Lost()
		if !got.Equal(since) || (err == nil) != since.IsZero() || (f.dir.Missing() != nil) != missing {
			t.Errorf("%s: Lost() = %v, %v, want since %v; Missing() = %v", what, got, err, since, f.dir.Missing())
		}
	}
	away := f.path + ".away"
	move := func(from, to string) {
		t.Helper()
		if err := os.Rename(from, to); err != nil {
			t.Fatal(err)
		}
	}
	f.write("a.yaml", service("a"))
	move(f.path, away)
	f.look(0)
	since := f.now
	lost("before it was read", since, true)
	move(away, f.path)
	f.look(0)
	lost("being read", time.Time{}, true)
	f.settled()
	lost("read", time.Time{}, false)
	move(f.path, away)
	f.look(time.Second)
	since = f.now
	f.look(time.Minute)
	lost("gone", since, false)
	move(away, f.path)
	f.look(time.Second)
	lost("back", time.Time{}, false)
}

func TestDirFollowsDirectory(t *testing.T) {
	f := newFixture(t)
	f.write("mesh.yaml", "type: Mesh\nname: default\n")
	f.write("a.yml", service("a")+"---\n"+service("b"))
	f.write("c.json", `{"type": "Service", "name": "c"}`)
	f.write("notes.txt", "no object")
	f.write(".hidden.yaml", broken)
	if err := os.Mkdir(filepath.Join(f.path, "directory.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	f.expect("before anything has settled", f.look(0))
	f.expect("start", f.look(settle),
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
	f.expectProblems("end", "directory.yaml: is not read: it is a directory")
}

func TestDirSyncedWithoutFiles(t *testing.T) {
	f := newFixture(t)
	f.expect("empty directory", f.look(0), "synced")
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
			if !strings.Contains(f.log.String(), "object file is valid again") {
				t.Errorf("log does not tell that the file is good again:\n%s", f.log.String())
			}
		})
	}
}

// TestDirForgetsRefusedContent checks that refused content is not used once its file has other content, even if that is
// invalid.
func TestDirForgetsRefusedContent(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a"))
	f.write("b.yaml", service("b"))
	f.settled()
	f.write("a.yaml", service("b"))
	f.expect("an object of another file", f.settled())
	f.write("a.yaml", broken)
	f.expect("broken", f.settled())
	f.write("b.yaml", service("c"))
	f.expect("the other file no longer has the object", f.settled(), "set Service default c", "delete Service default b")
	f.expectProblems("broken", "a.yaml, document 1, line ")
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
	f.expect("not settled", f.look(settle/2))
	f.write("a.yaml", service("a")+"---\n"+service("b")+"---\n"+service("c"))
	f.expect("second half seen", f.look(settle/2))
	f.expect("not settled since the second", f.look(settle/2))
	f.expect("settled", f.look(settle/2), "set Service default c")
}

func TestDirReportsFileThatKeepsChanging(t *testing.T) {
	f := newFixture(t)
	f.write("quiet.yaml", service("quiet"))
	text := service("busy")
	for range 2 * maxSettles {
		f.write("busy.yaml", text)
		text += "#\n"
		f.look(settle * 6 / 10)
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
	f.look(settle / 2)
	f.expect("old file settled as gone, new one not read", f.look(settle/2))
	f.expect("both", f.look(settle/2), "set Service default a")
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
		"a Mesh in use is removed, and the implied one comes into use": {
			start:   map[string]string{"m.yaml": "type: Mesh\nname: prod\n", "s.yaml": serviceOf("prod", "s")},
			then:    map[string]string{"m.yaml": "", "d.yaml": service("d")},
			want:    []string{"set Mesh  default", "set Service default d"},
			problem: `mesh: "prod": must be the name of a Mesh: default`,
		},
		"a Mesh that nothing uses is removed": {
			start: map[string]string{"m.yaml": "type: Mesh\nname: prod\n"},
			then:  map[string]string{"m.yaml": ""},
			want:  []string{"delete Mesh  prod"},

			problem: "no Mesh, Dataplane, Service or MeshService found",
		},
		"a Mesh goes with all that uses it": {
			start: map[string]string{"m.yaml": "type: Mesh\nname: prod\n", "s.yaml": serviceOf("prod", "s")},
			then:  map[string]string{"m.yaml": "", "s.yaml": ""},
			want:  []string{"delete Service prod s", "delete Mesh  prod"},

			problem: "no Mesh, Dataplane, Service or MeshService found",
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

func TestDirDirectoryGoes(t *testing.T) {
	f := newFixture(t)
	f.write("a.yaml", service("a"))
	f.settled()
	away := f.path + ".away"
	if err := os.Rename(f.path, away); err != nil {
		t.Fatal(err)
	}
	f.expect("directory is away", f.settled())
	f.expectProblems("directory is away", "no such file or directory")
	if err := os.Rename(away, f.path); err != nil {
		t.Fatal(err)
	}
	f.expect("directory is back", f.settled())
	f.expectProblems("directory is back")
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
