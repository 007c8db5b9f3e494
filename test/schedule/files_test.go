package schedule

import (
	"bytes"
	"cmp"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/store"
)

// fileOf returns the file of an object. A Mesh has its own file, the Services of a mesh share one, and half of all others
// have no file.
func (w *world) fileOf(k mesh.Key) string {
	switch k.Kind {
	case mesh.KindMesh:
		return "mesh-" + k.Name + ".yaml"
	case mesh.KindService:
		if k.Name < string(firstService+rune(services/2)) {
			return "services-" + k.Mesh + ".yaml"
		}
	case mesh.KindDataplane:
		if int(k.Name[len(k.Name)-1])%2 == w.parity {
			return k.Mesh + "-" + k.Name + ".yaml"
		}
	}
	return ""
}

// put sets the object with that key, or removes it if o is nil. The caller must not use o afterwards.
func (w *world) put(k mesh.Key, o mesh.Object) {
	if o == nil {
		delete(w.objects, k)
		w.note("delete %s %s %s", k.Kind, k.Mesh, k.Name)
	} else {
		o.SetDefaults()
		if err := o.Validate(); err != nil {
			w.wrong("%v", err)
		}
		w.objects[k] = o
		w.note("set %s %s %s", k.Kind, k.Mesh, k.Name)
	}
	switch file := w.fileOf(k); {
	case file != "":
		w.write(file)
	case w.plane == nil: // the next control plane gets it at its start
	case o == nil:
		w.plane.Builder.Delete(sourceDirect, k)
	default:
		w.plane.Builder.Set(sourceDirect, w.objects[k])
	}
}

// text is what the file should contain.
func (w *world) text(file string) []byte {
	var all [][]byte
	for _, k := range w.keys() {
		if w.fileOf(k) != file {
			continue
		}
		o := w.objects[k]
		if w.texts[o] == nil {
			var err error
			if w.texts[o], err = store.Encode(o); err != nil {
				w.wrong("%v", err)
			}
		}
		all = append(all, w.texts[o])
	}
	return bytes.Join(all, []byte("---\n"))
}

func (w *world) keys() []mesh.Key {
	return slices.SortedFunc(maps.Keys(w.objects), func(a, b mesh.Key) int {
		return cmp.Or(cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Mesh, b.Mesh), cmp.Compare(a.Name, b.Name))
	})
}

// write writes what the file should contain, and removes a file without objects.
func (w *world) write(file string) {
	delete(w.broken, file)
	if text := w.text(file); len(text) > 0 {
		w.replace(file, text)
	} else if err := os.Remove(filepath.Join(w.directory, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		w.wrong("%v", err)
	}
}

// spoil writes something that the store must not accept.
func (w *world) spoil(file string) {
	text := w.text(file)
	var how string
	switch how = pick(w.random, "empty", "cut", "field", "clash"); how {
	case "empty":
		text = nil
	case "cut":
		text = append(text[:len(text)/2:len(text)/2], "\n\t- {"...)
	case "field":
		text = append(text, "---\ntype: Service\nname: x\nnonsense: 1\n"...)
	case "clash":
		for _, k := range w.keys() {
			// The objects of a broken file may be in use nowhere, so that another file may have them.
			if other := w.fileOf(k); other != "" && other != file && !w.broken[other] {
				text = append(text, "---\n"...)
				text = append(text, w.text(other)...)
				break
			}
		}
	}
	w.note("break %s: %s", file, how)
	w.broken[file] = true
	w.replace(file, text)
}

// replace replaces a file in one step. It sets the modification time, since the system's clock is slower than the bubble's.
func (w *world) replace(file string, text []byte) {
	w.writes++
	at := time.Now().Add(time.Duration(w.writes))
	temporary := filepath.Join(w.directory, ".next")
	err := errors.Join(os.WriteFile(temporary, text, 0o600), os.Chtimes(temporary, at, at), os.Rename(temporary, filepath.Join(w.directory, file)))
	if err != nil {
		w.wrong("%v", err)
	}
}
