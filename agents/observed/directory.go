package observed

import (
	"fmt"
	"path"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// directory is a set of proxies in the storage: it has a file for each, whose path is its ID, <mesh>/<dataplane>. Without a storage
// nothing is kept.
type directory struct {
	name    string
	storage Storage
}

func (f directory) path(id mesh.ID) string { return path.Join(f.name, id) }

// write adds a proxy to the set. The file has the time.
func (f directory) write(id mesh.ID, now time.Time) error {
	return f.writeData(id, []byte(now.UTC().Format(time.RFC3339)+"\n"))
}

// writeData adds a proxy to the set, with data in its file.
func (f directory) writeData(id mesh.ID, data []byte) error {
	if f.storage == nil {
		return nil
	}
	return f.storage.Write(f.path(id), data)
}

// data returns what is in the file of a proxy.
func (f directory) data(id mesh.ID) ([]byte, error) { return f.storage.Read(f.path(id)) }

// remove removes a proxy from the set.
func (f directory) remove(id mesh.ID) error {
	if f.storage == nil {
		return nil
	}
	return f.storage.Remove(f.path(id))
}

// all returns the proxies of the set.
func (f directory) all() ([]mesh.ID, error) {
	if f.storage == nil {
		return nil, nil
	}
	meshes, err := f.storage.List(f.name)
	if err != nil {
		return nil, fmt.Errorf("read %s proxies: %w", f.name, err)
	}
	var all []mesh.ID
	for _, meshName := range meshes {
		names, err := f.storage.List(path.Join(f.name, meshName))
		if err != nil {
			return nil, fmt.Errorf("read %s proxies of mesh %q: %w", f.name, meshName, err)
		}
		for _, name := range names {
			all = append(all, mesh.MakeID(meshName, name))
		}
	}
	return all, nil
}
