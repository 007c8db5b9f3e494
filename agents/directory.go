package agents

import (
	"fmt"
	"path"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// directory is a set of proxies in the storage: it has a file for each, whose path is its ID, <mesh>/<dataplane>.
type directory struct {
	name    string
	storage Storage
}

func (f directory) path(id mesh.ID) string { return path.Join(f.name, id) }

// all returns the proxies of the set.
func (f directory) all() ([]mesh.ID, error) {
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
