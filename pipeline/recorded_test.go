package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/identity"
	"github.com/sonde-mesh/sonde/internal/testing/slowtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/store"
)

// filed is a control plane without agents: a directory of files, and what becomes of it, from one start to the next.
type filed struct {
	t        *testing.T
	files    string
	state    string
	pipeline *Pipeline
	dir      *store.Dir
	end      func()

	mu sync.Mutex
	// plain are the meshes whose Dataplanes may be served plain text: a Mesh has said so, or none was ever STRICT.
	plain  map[string]bool
	bare   map[string]time.Time // since when they have neither Mesh nor Dataplane
	served []string             // what was against that
}

func newFiled(t *testing.T) *filed {
	t.Helper()
	f := &filed{t: t, files: t.TempDir(), state: filepath.Join(t.TempDir(), "state"), plain: map[string]bool{"default": true, "prod": true}, bare: map[string]time.Time{}}
	f.start()
	t.Cleanup(func() { f.end() })
	return f
}

// start starts the control plane, and lets it read the directory.
func (f *filed) start() {
	f.t.Helper()
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	state, err := store.OpenState(f.state)
	must(err)
	records, err := store.NewRecords(state, slog.New(slog.DiscardHandler), prometheus.NewRegistry())
	must(err)
	authority, err := identity.New(f.t.Context(), identity.Options{Secrets: state.Secrets(), Records: records})
	must(err)
	f.pipeline = New(Options{
		View: meshview.Options{Sources: []string{"store"}}, Authority: authority, Emptied: func() bool { return f.dir.Empty() },
	}, Authorize)
	f.dir = store.NewDir(store.DirOptions{
		Path: f.files, Builder: watched{f.pipeline.Builder, f}, Source: "store", LastGood: records, Recorded: authority.Recorded,
		Watcher: func() (*fsnotify.Watcher, error) { return nil, errors.New("none here") },
	})
	ctx, cancel := context.WithCancel(f.t.Context())
	ended := make(chan error, 2)
	go func() { ended <- f.pipeline.Run(ctx) }()
	go func() { ended <- f.dir.Run(ctx) }()
	f.end = func() {
		cancel()
		must(errors.Join(<-ended, <-ended, records.Close(), state.Close()))
	}
	f.settle()
}

// watched looks at what is served after each object that the builder gets.
type watched struct {
	*meshview.Builder

	f *filed
}

func (w watched) Set(source string, o mesh.Object) {
	w.Builder.Set(source, o)
	synctest.Wait()
	w.f.look()
}

func (w watched) Delete(source string, k mesh.Key) {
	w.Builder.Delete(source, k)
	synctest.Wait()
	w.f.look()
}

// settle waits until the directory was read.
func (f *filed) settle() {
	time.Sleep(25*time.Second + time.Microsecond) // two scans, and never the time of one: watched waits then, and one goroutine alone may
	synctest.Wait()
	f.look()
}

// look notes a mesh that is served plain text, and may not be.
func (f *filed) look() {
	v := f.pipeline.Builder.View()
	if v == nil {
		return
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for name, m := range v.Meshes {
		if m.Proxies.Len() > 0 && m.Spec.Mode() != mesh.ModeStrict && !f.plain[name] {
			f.served = append(f.served, fmt.Sprintf("%s is served in mode %q", name, m.Spec.Mode()))
		}
	}
}

// mode returns the mode in which the Dataplanes of a mesh are served, "none" without any.
func (f *filed) mode(meshName string) string {
	if m := f.pipeline.Builder.View().Mesh(meshName); m != nil && m.Proxies.Len() > 0 {
		return cmp.Or(string(m.Spec.Mode()), "off")
	}
	return "none"
}

func (f *filed) write(name, text string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.files, name), []byte(text), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// rename moves a file out of what is read, or back.
func (f *filed) rename(from, to string) {
	f.t.Helper()
	if err := os.Rename(filepath.Join(f.files, from), filepath.Join(f.files, to)); err != nil {
		f.t.Fatal(err)
	}
}

func (f *filed) removeAll() {
	f.t.Helper()
	all, err := os.ReadDir(f.files)
	for _, file := range all {
		err = errors.Join(err, os.Remove(filepath.Join(f.files, file.Name())))
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// meshText is a Mesh in a mode; "" is one without mTLS.
func meshText(name string, mode mesh.MTLSMode) string {
	text := "type: Mesh\nname: " + name + "\n"
	if mode != "" {
		text += "mtls: {enabledBackend: ca, backends: [{name: ca, type: builtin, mode: " + string(mode) + "}]}\n"
	}
	return text
}

func dataplaneText(meshName, name string) string {
	return "type: Dataplane\nmesh: " + meshName + "\nname: " + name + `
networking: {address: 10.0.0.1, inbound: [{port: 80, servicePort: 8080, tags: {kuma.io/service: s}}]}
`
}

// TestLostMesh has the Mesh of a mesh in mode STRICT go in each way, while the control plane runs or not.
func TestLostMesh(t *testing.T) {
	for name, lose := range map[string]func(f *filed){
		"renamed":    func(f *filed) { f.rename("mesh.yaml", "mesh.yaml.bak") },
		"empty":      func(f *filed) { f.write("mesh.yaml", "") },
		"broken":     func(f *filed) { f.write("mesh.yaml", "type: Mesh\nname: [") },
		"wrong name": func(f *filed) { f.write("mesh.yaml", meshText("defaults", mesh.ModeStrict)) },
		"all files": func(f *filed) {
			f.removeAll()
			f.settle()
			f.write("web.yaml", dataplaneText("default", "web-1"))
		},
		"all files, and another mesh is back": func(f *filed) {
			f.removeAll()
			f.settle()
			f.write("web.yaml", dataplaneText("default", "web-1"))
			f.write("prod.yaml", meshText("prod", ""))
		},
		"and another mesh": func(f *filed) {
			f.rename("mesh.yaml", "gone")
			f.write("prod.yaml", meshText("prod", mesh.ModePermissive))
		},
	} {
		for _, down := range []bool{false, true} {
			virtual.Run(t, fmt.Sprintf("%s, down is %t", name, down), func(t *testing.T) {
				f := newFiled(t)
				f.write("mesh.yaml", meshText("default", mesh.ModeStrict))
				f.write("web.yaml", dataplaneText("default", "web-1"))
				f.settle()
				f.plain["default"] = false
				if down {
					f.end()
				}
				lose(f)
				if down {
					f.start()
				}
				f.settle()
				f.end()
				f.start()
				if got := f.mode("default"); got != "STRICT" || len(f.served) > 0 {
					t.Errorf("the mode is %s, want STRICT; meanwhile: %q", got, f.served)
				}
				if name != "empty" && name != "broken" { // which the file itself says
					f.tells("default")
				}
				f.plain["default"] = true
				f.write("off.yaml", meshText("default", ""))
				f.settle()
				if got := f.mode("default"); got != "off" && name != "empty" && name != "broken" {
					t.Errorf("a Mesh without mTLS is written, and the mode is %s", got)
				}
			})
		}
	}
}

// tells looks whether the loss is told.
func (f *filed) tells(meshName string) {
	f.t.Helper()
	want := fmt.Sprintf("mesh %q: Mesh not found, keeping its recorded mode STRICT", meshName)
	if !slices.ContainsFunc(f.dir.Problems(), func(p store.Problem) bool {
		return p.Severity == store.Error && strings.Contains(p.Err.Error(), want)
	}) {
		f.t.Errorf("the problems are %v, want %q", f.dir.Problems(), want)
	}
	if err := f.pipeline.recorder.Check(f.pipeline.Builder.View()); err == nil || !strings.Contains(err.Error(), want) {
		f.t.Errorf("the check says %v, want %q", err, want)
	}
}

// TestRecordGoesWithItsMesh has a mesh lose its Mesh and then its last Dataplane: a later mesh of that name is another
// one.
func TestRecordGoesWithItsMesh(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFiled(t)
		f.write("mesh.yaml", meshText("default", mesh.ModeStrict))
		f.write("web.yaml", dataplaneText("default", "web-1"))
		f.write("prod.yaml", meshText("prod", ""))
		f.settle()
		f.rename("mesh.yaml", "gone")
		f.settle()
		f.tells("default")
		f.rename("web.yaml", "gone too")
		f.settle()
		f.tells("default")
		time.Sleep(mesh.EndedAfter)
		f.settle()
		if problems := f.dir.Problems(); len(problems) > 0 {
			t.Errorf("the problems are %v, want none", problems)
		}
		f.end()
		f.start()
		if err := f.pipeline.recorder.Check(f.pipeline.Builder.View()); err != nil {
			t.Errorf("the check says %v", err)
		}
	})
}

// TestStrictMeshesNeverServePlainText changes and loses files at random, and starts the control plane again meanwhile.
// A mesh that was STRICT serves plain text only after a Mesh of its name was written that says so, or after it has
// ended.
func TestStrictMeshesNeverServePlainText(t *testing.T) {
	for seed := range slowtest.Rounds(300, 25) {
		virtual.Run(t, strconv.Itoa(seed), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(seed), 1))
			f := newFiled(t)
			var done []string
			for range 30 {
				done = append(done, f.anything(r))
				if len(f.served) > 0 {
					t.Fatalf("%q, after\n%s", f.served, strings.Join(done, "\n"))
				}
			}
		})
	}
}

// anything does something at random, and returns what.
func (f *filed) anything(r *rand.Rand) string {
	name := []string{"default", "prod"}[r.IntN(2)]
	file, dataplane := name+"-mesh.yaml", name+"-web.yaml"
	if r.IntN(13) < 3 {
		mode := []mesh.MTLSMode{mesh.ModeStrict, mesh.ModeStrict, mesh.ModePermissive, ""}[r.IntN(4)]
		f.set(name, true)
		f.write(file, meshText(name, mode))
		f.settle()
		f.set(name, mode != mesh.ModeStrict)
		f.ended()
		return "write " + file + " " + string(mode)
	}
	if r.IntN(5) < 2 {
		f.write(dataplane, dataplaneText(name, "web-"+name))
		f.sometimesSettle(r)
		return "write " + dataplane
	}
	ops := []struct {
		what string
		do   func()
	}{
		{"remove " + dataplane, func() { f.rename(dataplane, "gone") }},
		{"remove " + file, func() { f.rename(file, "gone") }},
		{"empty " + file, func() { f.write(file, "") }},
		{"break " + file, func() { f.write(file, "type: Mesh\nname: [") }},
		{"wrong name in " + file, func() { f.write(file, meshText("other-"+name, mesh.ModeStrict)) }},
		{"remove all", f.removeAll},
		{"much later", func() {
			f.settle()
			f.ended()
			time.Sleep(time.Duration(r.IntN(15)) * time.Minute)
		}},
		{"start again", func() {
			f.end()
			f.start()
		}},
	}
	op := ops[r.IntN(len(ops))]
	if words := strings.Fields(op.what); !strings.HasSuffix(op.what, ".yaml") || f.has(words[len(words)-1]) {
		op.do()
	}
	f.sometimesSettle(r)
	return op.what
}

// sometimesSettle has what comes next often not find the directory as it was read.
func (f *filed) sometimesSettle(r *rand.Rand) {
	if r.IntN(3) > 0 {
		f.settle()
	}
	f.ended()
}

func (f *filed) has(file string) bool {
	_, err := os.Stat(filepath.Join(f.files, file))
	return err == nil
}

func (f *filed) set(meshName string, plain bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.plain[meshName] = plain
}

// ended takes meshes for new ones that have ended.
func (f *filed) ended() {
	v := f.pipeline.Builder.View()
	for _, name := range []string{"default", "prod"} {
		m := v.Mesh(name)
		switch since, ok := f.bare[name]; {
		case f.dir.Empty() || m != nil && (m.Proxies.Len() > 0 || !m.Spec.Recorded && m.Spec.Mode() != ""):
			delete(f.bare, name)
		case !ok:
			f.bare[name] = time.Now()
		case time.Since(since) >= mesh.EndedAfter-time.Minute: // it was bare before the first look
			f.set(name, true)
		}
	}
}
