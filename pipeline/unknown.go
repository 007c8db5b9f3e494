package pipeline

import (
	"context"
	"log/slog"
	"strings"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/explain"
)

// maxLoggedServices is how many services of one change get their own log line. More are counted in one line, with the
// first.
const maxLoggedServices = 20

// logUnknown logs the services of a change that only outbounds name, and those that have ceased to be unknown.
func logUnknown(ctx context.Context, log *slog.Logger, c meshview.Change) {
	var begun, over []mesh.ID
	for _, id := range c.Unknown {
		if _, s := c.After.Service(id); s != nil && s.Unknown {
			begun = append(begun, id)
		} else {
			over = append(over, id)
		}
	}
	if len(begun) > maxLoggedServices {
		log.WarnContext(ctx, "outbounds name services that do not exist, calls of them fail",
			"services", len(begun), "first", firstOf(begun))
	} else {
		for _, s := range c.After.UnknownOf(begun) {
			attributes := []any{"mesh", s.Mesh, "service", s.Name, "dataplanes", mesh.Few(s.Clients.Names)}
			if hint := explain.Hint(s); hint != "" {
				attributes = append(attributes, "hint", hint)
			}
			log.WarnContext(ctx, "an outbound names a service that does not exist, calls of it fail", attributes...)
		}
	}
	if len(over) > maxLoggedServices {
		log.InfoContext(ctx, "services exist now, or no outbound names them", "services", len(over), "first", firstOf(over))
		return
	}
	for _, id := range over {
		meshName, name := mesh.SplitID(id)
		if _, s := c.After.Service(id); s != nil {
			log.InfoContext(ctx, "an unknown service exists now", "mesh", meshName, "service", name)
		} else {
			log.InfoContext(ctx, "an unknown service is no longer named by any outbound", "mesh", meshName, "service", name)
		}
	}
}

// firstOf names the first services of a long list.
func firstOf(services []mesh.ID) string { return strings.Join(services[:maxLoggedServices], ", ") }
