package admin

import (
	"context"
	"maps"
	"slices"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/meshview"
)

// CheckStrict implements adminv1.AdminServiceServer.
func (s *service) CheckStrict(ctx context.Context, r *adminv1.CheckStrictRequest) (*adminv1.CheckStrictResponse, error) {
	if s.o.Strict == nil {
		return nil, status.Error(codes.Unimplemented, "this control plane does not know what mode STRICT would refuse")
	}
	v, err := s.view(ctx)
	if err != nil {
		return nil, err
	}
	meshes := []*meshview.Mesh{v.Mesh(r.GetMesh())}
	switch {
	case r.GetMesh() == "":
		meshes = meshes[:0]
		for _, name := range slices.Sorted(maps.Keys(v.Meshes)) {
			meshes = append(meshes, v.Meshes[name])
		}
	case meshes[0] == nil:
		return nil, noMesh(v, r.GetMesh())
	}
	streams, silent := s.o.Streams(ctx)
	missing := slices.Concat(s.o.Missing(), silent)
	slices.Sort(missing)
	response := &adminv1.CheckStrictResponse{MissingReplicas: slices.Compact(missing)}
	for _, m := range meshes {
		found := s.o.Strict(ctx, m, streams)
		found.PortsLeftOut = uint32(max(0, len(found.GetPorts())-maxListed))
		found.GapsLeftOut = uint32(max(0, len(found.GetGaps())-maxListed))
		found.Ports, found.Gaps = found.GetPorts()[:min(len(found.GetPorts()), maxListed)], found.GetGaps()[:min(len(found.GetGaps()), maxListed)]
		response.Meshes = append(response.Meshes, found)
	}
	return response, nil
}
