package store

import (
	"log/slog"

	"github.com/sonde-mesh/sonde/api/mesh"
)

// maxLogged is how many changes of one scan get a log line each. Further changes are only counted.
const maxLogged = 20

// What happened to an object.
const (
	added   = "added"
	changed = "changed"
	removed = "removed"
)

// change is a change of an object.
type change struct {
	key  mesh.Key
	what string
}

// logChanges logs the changes since the last scan that the Builder has received.
func logChanges(log *slog.Logger, changes []change) {
	if len(changes) > maxLogged {
		counts := map[string]int{}
		for _, c := range changes {
			counts[c.what]++
		}
		log.Info("objects applied", added, counts[added], changed, counts[changed], removed, counts[removed])
		return
	}
	for _, c := range changes {
		attributes := []any{"kind", c.key.Kind}
		if c.key.Mesh != "" {
			attributes = append(attributes, "mesh", c.key.Mesh)
		}
		log.Info("object applied", append(attributes, "name", c.key.Name, "change", c.what)...)
	}
}
