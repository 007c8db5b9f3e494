// Package featuretest runs the pipeline of the control plane in a bubble of testing/synctest, and connects clients that
// speak real ADS over mTLS with real certificates, in memory. Each feature test is one scenario.
package featuretest

import (
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/secrettest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/xds"
)

const (
	// laterDirectory of a case has the files that a test puts into the store later.
	laterDirectory = "later"
	// gatherTime is longer than the server waits for further changes, to send them together.
	gatherTime = 150 * time.Millisecond
)

// Feature is a running control plane and the content of its store.
type Feature struct {
	t         *testing.T
	directory string // of the case
	// kept is the content of a state directory. It is in memory: no scenario tests the disk, which may stall for longer
	// than the control plane waits.
	kept secrettest.Records

	objects map[mesh.Key]mesh.Object
	plane   *plane
	network *virtual.Network
}

// Start runs a control plane with the files of testdata/<case>. The files in its directory later are for Put.
func Start(t *testing.T, name string) *Feature {
	t.Helper()
	f := newFeature(t, name)
	for _, o := range f.decode(filepath.Join(f.directory, "*.yaml")) {
		f.objects[o.Key()] = o
	}
	f.run()
	return f
}

func newFeature(t *testing.T, name string) *Feature {
	t.Helper()
	f := &Feature{
		t: t, directory: filepath.Join("testdata", name), kept: secrettest.Records{Memory: &secrettest.Memory{}},
		objects: map[mesh.Key]mesh.Object{}, network: virtual.NewNetwork(),
	}
	t.Cleanup(func() { f.Stop() })
	return f
}

func (f *Feature) run() {
	f.t.Helper()
	f.plane = startPlane(f.t, f.network, f.kept)
	for _, k := range f.keys() {
		f.plane.Builder.Set(sourceStore, f.objects[k])
	}
	f.plane.Builder.Synced(sourceStore)
	f.Settle()
}

// keys are sorted, so that every start is the same.
func (f *Feature) keys() []mesh.Key {
	return slices.SortedFunc(maps.Keys(f.objects), func(a, b mesh.Key) int {
		return slices.Compare([]string{string(a.Kind), a.Mesh, a.Name}, []string{string(b.Kind), b.Mesh, b.Name})
	})
}

// Stop ends the control plane. Its clients see the same as after a crash.
func (f *Feature) Stop() {
	if f.plane != nil {
		f.plane.stop(f.t)
		f.plane = nil
	}
}

// Restart ends the control plane and runs a new one with the same state and store. Puts between Stop and Restart are
// the changes while no control plane runs.
func (f *Feature) Restart() {
	f.t.Helper()
	f.Stop()
	f.run()
}

// Put puts the objects of a file in the case's directory later into the store. When it returns, the changes are
// published.
func (f *Feature) Put(file string) {
	f.t.Helper()
	f.Set(f.decode(filepath.Join(f.directory, laterDirectory, file))...)
}

// PutYAML is like Put for a text.
func (f *Feature) PutYAML(text string) {
	f.t.Helper()
	f.Set(f.objectsOf("text.yaml", []byte(text))...)
}

// Set puts objects into the store. When it returns, the changes are published.
func (f *Feature) Set(objects ...mesh.Object) {
	f.t.Helper()
	for _, o := range objects {
		f.objects[o.Key()] = o
		if f.plane != nil {
			f.plane.Builder.Set(sourceStore, o)
		}
	}
	f.Settle()
}

// Delete removes an object from the store. When it returns, the change is published.
func (f *Feature) Delete(kind mesh.Kind, name string) {
	f.t.Helper()
	key := mesh.Key{Kind: kind, Mesh: mesh.DefaultMesh, Name: name}
	if f.objects[key] == nil {
		f.t.Fatalf("no %s %q to delete", kind, name)
	}
	delete(f.objects, key)
	if f.plane != nil {
		f.plane.Builder.Delete(sourceStore, key)
	}
	f.Settle()
}

// Observe records what an agent reports about its proxy in mesh default. When it returns, the change is published.
func (f *Feature) Observe(proxy string, o mesh.Observation) {
	f.t.Helper()
	f.plane.Builder.Observe(mesh.MakeID(mesh.DefaultMesh, proxy), o)
	f.Settle()
}

// Settle returns when no goroutine has work before more time passes: everything that the builder got is published.
func (f *Feature) Settle() {
	f.t.Helper()
	synctest.Wait()
}

// Status returns the server's state of its streams.
func (f *Feature) Status() []xds.ProxyStatus { return f.plane.XDS.Status() }

// Resources returns what a proxy should have: type, name and version of each resource.
func (f *Feature) Resources(proxy string) []string {
	f.t.Helper()
	desired, ok := f.plane.Translator.Resources(mesh.MakeID(mesh.DefaultMesh, proxy))
	if !ok {
		f.t.Fatalf("proxy %q is unknown", proxy)
	}
	return describe(desired)
}

func (f *Feature) glob(pattern string) []string {
	f.t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		f.t.Fatalf("no file matches %s: %v", pattern, err)
	}
	return files
}

func (f *Feature) decode(pattern string) []mesh.Object {
	f.t.Helper()
	var all []mesh.Object
	for _, file := range f.glob(pattern) {
		data, err := os.ReadFile(file)
		if err != nil {
			f.t.Fatal(err)
		}
		all = append(all, f.objectsOf(file, data)...)
	}
	return all
}

func (f *Feature) objectsOf(file string, data []byte) []mesh.Object {
	f.t.Helper()
	documents, problems := store.Decode(file, data)
	for _, p := range problems {
		f.t.Fatalf("%v", p)
	}
	var all []mesh.Object
	for _, d := range documents {
		all = append(all, d.Object)
	}
	return all
}

// logger logs to the output of the test, which is shown if the test fails.
func logger(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// failing fails the test at each log line.
type failing struct{ t *testing.T }

func (f failing) Write(line []byte) (int, error) {
	f.t.Errorf("%s", line)
	return len(line), nil
}
