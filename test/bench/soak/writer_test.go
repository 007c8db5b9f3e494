//go:build soak

package soak

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/storetest"
	"github.com/sonde-mesh/sonde/store"
	"github.com/sonde-mesh/sonde/test/anymesh"
)

// writer writes the files, and records their expected contents.
type writer struct {
	s         *soak
	directory string
	objects   map[mesh.Key]mesh.Object
	fileOf    map[mesh.Key]string // file of each object, even if it is removed at the moment
	removed   map[string]bool     // files that were removed with their objects
	broken    map[string]bool
	writes    map[string]int // number of writes per file
}

func newWriter(s *soak, directory string) *writer {
	w := &writer{
		s: s, directory: directory, objects: map[mesh.Key]mesh.Object{}, fileOf: map[mesh.Key]string{},
		removed: map[string]bool{}, broken: map[string]bool{}, writes: map[string]int{},
	}
	for _, name := range meshes {
		w.set(anymesh.Mesh(s.random, name), "mesh.yaml")
	}
	for i := range *services {
		w.set(anyService(s.random, i), fmt.Sprintf("services-%03d.yaml", i/10))
		w.set(anyMeshService(s.random, i), fmt.Sprintf("services-%03d.yaml", i/10))
	}
	for i := range *proxies {
		file := proxyName(i) + ".yaml"
		if i%2 == 0 {
			file = fmt.Sprintf("proxies-%03d.yaml", i/8)
		}
		w.set(anyDataplane(s.random, i), file)
	}
	for _, file := range w.files() {
		w.write(file, atOnce)
	}
	return w
}

// set puts an object into a file, to be written by the next write.
func (w *writer) set(o mesh.Object, file string) {
	o.SetDefaults()
	w.s.must(o.Validate())
	w.objects[o.Key()], w.fileOf[o.Key()] = o, file
}

// files returns the files that should exist, sorted.
func (w *writer) files() []string {
	all := map[string]bool{}
	for key := range w.objects {
		all[w.fileOf[key]] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// keys returns the keys of the objects in a file, in order.
func (w *writer) keys(file string) []mesh.Key {
	return slices.DeleteFunc(anymesh.Keys(w.objects), func(key mesh.Key) bool { return w.fileOf[key] != file })
}

// text returns the expected content of a file.
func (w *writer) text(file string) []byte {
	var all [][]byte
	for _, key := range w.keys(file) {
		text, err := storetest.Encode(w.objects[key])
		w.s.must(err)
		all = append(all, text)
	}
	return bytes.Join(all, []byte("---\n"))
}

// Ways to write a file.
const (
	atOnce   = iota // by rename
	inPlace         // truncated and rewritten
	inHalves        // the same, with the second half later
)

// write writes the expected content of a file, and removes a file without objects.
func (w *writer) write(file string, how int) {
	text := w.text(file)
	delete(w.broken, file)
	delete(w.removed, file)
	if len(text) == 0 {
		w.remove(file)
		return
	}
	w.put(file, text, how)
}

func (w *writer) remove(file string) {
	w.writes[file]++
	if err := os.Remove(filepath.Join(w.directory, file)); !errors.Is(err, fs.ErrNotExist) {
		w.s.must(err)
	}
}

func (w *writer) put(file string, text []byte, how int) {
	w.writes[file]++
	path := filepath.Join(w.directory, file)
	var err error
	switch how {
	case atOnce:
		next := filepath.Join(w.directory, ".next")
		if err = os.WriteFile(next, text, 0o600); err == nil {
			err = os.Rename(next, path)
		}
	case inPlace:
		err = os.WriteFile(path, text, 0o600)
	case inHalves:
		at := w.half(file, text)
		err = os.WriteFile(path, text[:at], 0o600)
		mine := w.writes[file]
		w.s.later(w.s.upTo(400*time.Millisecond), func() {
			if w.writes[file] == mine {
				w.append(path, text[at:])
			}
		})
	}
	w.s.must(err)
}

func (w *writer) append(path string, text []byte) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	w.s.must(err)
	_, err = f.Write(text)
	w.s.must(errors.Join(err, f.Close()))
}

// half draws where to cut a text. The first half must not be a Dataplane without inbounds, which may remove all
// resources of a proxy.
func (w *writer) half(file string, text []byte) int {
	for {
		at := w.s.random.IntN(len(text))
		documents, _ := store.Decode(file, text[:at])
		if !slices.ContainsFunc(documents, func(d store.Document) bool {
			proxy, ok := d.Object.(*mesh.Dataplane)
			return ok && len(proxy.Spec.Networking.Inbound) == 0
		}) {
			return at
		}
	}
}

// breakFile writes content that the store must reject.
func (w *writer) breakFile(file string) {
	text, how := anymesh.Break(w.s.random, w.text(file), w.text(anymesh.Pick(w.s.random, w.files()...)))
	w.s.note("break %s: %s", file, how)
	w.broken[file] = true
	w.put(file, text, anymesh.Pick(w.s.random, atOnce, inPlace))
}

// rename moves all objects of a file to a file with another name.
func (w *writer) rename(file, to string) {
	keys := w.keys(file)
	for _, key := range keys {
		w.fileOf[key] = to
	}
	w.writes[file]++
	w.writes[to]++
	w.s.must(os.Rename(filepath.Join(w.directory, file), filepath.Join(w.directory, to)))
}

// mend writes the expected content of each file.
func (w *writer) mend() {
	listed, err := filepath.Glob(filepath.Join(w.directory, "*.yaml"))
	w.s.must(err)
	files := w.files()
	for _, path := range listed {
		if file := filepath.Base(path); !slices.Contains(files, file) {
			w.remove(file)
		}
	}
	for _, file := range files {
		if now, err := os.ReadFile(filepath.Join(w.directory, file)); err != nil || !bytes.Equal(now, w.text(file)) {
			w.write(file, atOnce)
		}
	}
	clear(w.broken)
	clear(w.removed)
}
