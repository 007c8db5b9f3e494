package lists

import (
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/explain"
)

// unknownServices returns warnings about services that only outbounds name, sorted by mesh and name.
func unknownServices(v *meshview.View) []*adminv1.Problem {
	unknown := v.UnknownServices()
	var problems []*adminv1.Problem
	for i, s := range unknown {
		if i == explain.MaxUnknown {
			problems = append(problems, &adminv1.Problem{Warning: true, Text: explain.MoreUnknown(len(unknown) - i)})
			break
		}
		problems = append(problems, &adminv1.Problem{Warning: true, Text: explain.UnknownService(s),
			Object: "service/" + s.Name, Mesh: s.Mesh})
	}
	return problems
}
