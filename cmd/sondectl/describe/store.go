package describe

import (
	"fmt"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Place is the file and line of a problem of the store, followed by ": "; "" if unknown.
func Place(p *adminv1.Problem) string {
	switch {
	case p.GetFile() == "":
		return ""
	case p.GetDocument() == 0:
		return p.GetFile() + ": "
	default:
		return fmt.Sprintf("%s, document %d, line %d: ", p.GetFile(), p.GetDocument(), p.GetLine())
	}
}
