package admin

import (
	"context"
	"slices"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/admin/caller"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// inspectTimeout bounds an Envoy's answer. It is longer than the agent's timeout and shorter than sondectl's, so that
// the error comes from the side that waited for Envoy.
const inspectTimeout = 40 * time.Second

// InspectEnvoy implements adminv1.AdminServiceServer.
func (s *service) InspectEnvoy(r *adminv1.InspectEnvoyRequest, stream adminv1.AdminService_InspectEnvoyServer) error {
	view := mesh.EnvoyView(r.GetView())
	if !slices.Contains(mesh.EnvoyViews(), view) {
		return status.Errorf(codes.InvalidArgument, "view %q: must be one of %v", view, mesh.EnvoyViews())
	}
	p, err := s.o.View.Proxy(stream.Context(), r.GetMesh(), r.GetName())
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(stream.Context(), inspectTimeout)
	defer cancel()
	s.o.Logger.InfoContext(ctx, "envoy inspected", "mesh", p.Dataplane.Mesh, "proxy", p.Dataplane.Name, "view", view,
		"caller", caller.Name(ctx))
	return s.o.Query(ctx, p.ID(), view, func(part []byte) error {
		return stream.Send(&adminv1.InspectEnvoyPart{Data: part})
	})
}
