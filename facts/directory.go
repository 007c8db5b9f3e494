package facts

import (
	"fmt"
	"path"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// Storage keeps sets of proxies with data. Names are slash-separated paths. Write is atomic. It is durable once the
// data is on disk, for which it waits only for a short time. List returns the names in a directory, none if it does not
// exist. *store.Records implements it.
type Storage interface {
	Read(name string) ([]byte, error)
	Write(name string, data []byte) error
	Remove(name string) error
	List(directory string) ([]string, error)
}

// Directory is a stored set of proxies, with a file for each, whose path is its ID, <mesh>/<dataplane>. Without a
// storage nothing is kept.
type Directory struct {
	Name    string
	Storage Storage
}

func (f Directory) path(id mesh.ID) string { return path.Join(f.Name, id) }

// Add adds a proxy to the set. The file has the time.
func (f Directory) Add(id mesh.ID, now time.Time) error {
	return f.Write(id, []byte(now.UTC().Format(time.RFC3339)+"\n"))
}

// Write adds a proxy to the set, with data in its file.
func (f Directory) Write(id mesh.ID, data []byte) error {
	if f.Storage == nil {
		return nil
	}
	return f.Storage.Write(f.path(id), data)
}

// Read returns the content of a proxy's file.
func (f Directory) Read(id mesh.ID) ([]byte, error) { return f.Storage.Read(f.path(id)) }

// Remove removes a proxy from the set.
func (f Directory) Remove(id mesh.ID) error {
	if f.Storage == nil {
		return nil
	}
	return f.Storage.Remove(f.path(id))
}

// All returns the proxies of the set.
func (f Directory) All() ([]mesh.ID, error) {
	if f.Storage == nil {
		return nil, nil
	}
	meshes, err := f.Storage.List(f.Name)
	if err != nil {
		return nil, fmt.Errorf("read %s proxies: %w", f.Name, err)
	}
	var all []mesh.ID
	for _, meshName := range meshes {
		names, err := f.Storage.List(path.Join(f.Name, meshName))
		if err != nil {
			return nil, fmt.Errorf("read %s proxies of mesh %q: %w", f.Name, meshName, err)
		}
		for _, name := range names {
			all = append(all, mesh.MakeID(meshName, name))
		}
	}
	return all, nil
}
