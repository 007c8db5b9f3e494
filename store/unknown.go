package store

import (
	"errors"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/explain"
)

// unknownServices warns of services that outbounds name but no document has, each at the first Dataplane that names it.
// The documents must be all documents of a mesh.
func unknownServices(directory string, documents []Document) []Problem {
	b := meshview.NewBuilder(meshview.Options{})
	places := map[mesh.Key]Place{}
	for _, d := range documents {
		b.Set("files", d.Object)
		places[d.Object.Key()] = d.Place
	}
	change, _ := b.Build() // the first Build returns a view
	unknown := change.After.UnknownServices()
	var problems []Problem
	for i, s := range unknown {
		if i == explain.MaxUnknown {
			problems = append(problems, Problem{Place: Place{File: directory}, Severity: Warning,
				Err: errors.New(explain.MoreUnknown(len(unknown) - i))})
			break
		}
		at := places[mesh.Key{Kind: mesh.KindDataplane, Mesh: s.Mesh, Name: s.Clients.Names[0]}]
		problems = append(problems, Problem{Place: at, Severity: Warning, Err: errors.New(explain.UnknownService(s))})
	}
	return problems
}
