package schedule

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/storetest"
	"github.com/sonde-mesh/sonde/test/anymesh"
)

// fileOf returns the file of an object. A Mesh has its own file, the Services and MeshServices of a mesh share one,
// and half of all other objects have no file.
func (s *simulation) fileOf(k mesh.Key) string {
	switch k.Kind {
	case mesh.KindMesh:
		return "mesh-" + k.Name + ".yaml"
	case mesh.KindService, mesh.KindMeshService:
		if k.Name < string(firstService+rune(services/2)) {
			return "services-" + k.Mesh + ".yaml"
		}
	case mesh.KindDataplane:
		if int(k.Name[len(k.Name)-1])%2 == s.parity {
			return k.Mesh + "-" + k.Name + ".yaml"
		}
	}
	return ""
}

// put sets the object with that key; nil removes it. The caller must not use o afterwards.
func (s *simulation) put(k mesh.Key, o mesh.Object) {
	if o == nil {
		delete(s.objects, k)
		s.Note("delete %s %s %s", k.Kind, k.Mesh, k.Name)
	} else {
		o.SetDefaults()
		if err := o.Validate(); err != nil {
			s.Wrong("%v", err)
		}
		s.objects[k] = o
		s.Note("set %s %s %s", k.Kind, k.Mesh, k.Name)
	}
	switch file := s.fileOf(k); {
	case file != "":
		s.write(file)
	case s.plane == nil: // the next control plane reads it at its start
	case o == nil:
		s.plane.Builder.Delete(sourceDirect, k)
	default:
		s.plane.Builder.Set(sourceDirect, s.objects[k])
	}
}

// text returns the expected content of the file.
func (s *simulation) text(file string) []byte {
	var all [][]byte
	for _, k := range s.keys() {
		if s.fileOf(k) != file {
			continue
		}
		o := s.objects[k]
		if s.texts[o] == nil {
			var err error
			if s.texts[o], err = storetest.Encode(o); err != nil {
				s.Wrong("%v", err)
			}
		}
		all = append(all, s.texts[o])
	}
	return bytes.Join(all, []byte("---\n"))
}

func (s *simulation) keys() []mesh.Key { return anymesh.Keys(s.objects) }

// write writes the expected content of the file, and removes a file without objects.
func (s *simulation) write(file string) {
	delete(s.broken, file)
	if text := s.text(file); len(text) > 0 {
		s.replace(file, text)
	} else if err := os.Remove(filepath.Join(s.directory, file)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		s.Wrong("%v", err)
	}
}

// breakFile writes content that the store must reject. The objects of a broken file may be unused, so that another
// file may have them: only objects of valid files conflict.
func (s *simulation) breakFile(file string) {
	var other []byte
	for _, k := range s.keys() {
		if at := s.fileOf(k); at != "" && at != file && !s.broken[at] {
			other = s.text(at)
			break
		}
	}
	text, how := anymesh.Break(s.random, s.text(file), other)
	s.Note("break %s: %s", file, how)
	s.broken[file] = true
	s.replace(file, text)
}

// replace replaces a file in one step. It sets the modification time, because the system's clock is slower than the
// bubble's.
func (s *simulation) replace(file string, text []byte) {
	s.writes++
	at := time.Now().Add(time.Duration(s.writes))
	temporary := filepath.Join(s.directory, ".next")
	err := errors.Join(os.WriteFile(temporary, text, 0o600), os.Chtimes(temporary, at, at), os.Rename(temporary, filepath.Join(s.directory, file)))
	if err != nil {
		s.Wrong("%v", err)
	}
}
