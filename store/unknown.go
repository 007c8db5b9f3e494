package store

import (
	"errors"
	"fmt"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// maxUnknown is how many services that nobody has are named.
const maxUnknown = 20

// unknownServices warns of services that outbounds name and none of the documents has, each at the first Dataplane that does. The
// documents must be all of a mesh.
func unknownServices(directory string, documents []Document) []Problem {
	b := meshview.NewBuilder(meshview.Options{})
	places := map[mesh.Key]Place{}
	for _, d := range documents {
		b.Set("files", d.Object)
		places[d.Object.Key()] = d.Place
	}
	change, _ := b.Build() // the first Build has a view
	unknown := change.After.UnknownServices()
	var problems []Problem
	for i, s := range unknown {
		if i == maxUnknown {
			problems = append(problems, Problem{Place: Place{File: directory}, Severity: Warning,
				Err: fmt.Errorf("outbounds name %d more services that nobody has", len(unknown)-i)})
			break
		}
		at := places[mesh.Key{Kind: mesh.KindDataplane, Mesh: s.Mesh, Name: s.Clients.Names[0]}]
		problems = append(problems, Problem{Place: at, Severity: Warning, Err: errors.New(s.String())})
	}
	return problems
}
