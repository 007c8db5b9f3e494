package admin

import (
	"fmt"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/meshview"
)

// maxUnknown is the limit of warnings about services that nobody has.
const maxUnknown = 20

// unknownServices warns of services that outbounds name and nobody has, sorted by mesh and name.
func unknownServices(v *meshview.View) []*adminv1.Problem {
	unknown := v.UnknownServices()
	var problems []*adminv1.Problem
	for i, s := range unknown {
		if i == maxUnknown {
			problems = append(problems, &adminv1.Problem{Warning: true, Text: fmt.Sprintf("outbounds name %d more services that nobody has", len(unknown)-i)})
			break
		}
		problems = append(problems, &adminv1.Problem{Warning: true, Text: s.String()})
	}
	return problems
}
