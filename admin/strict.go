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
	v, err := s.filtered(ctx, &adminv1.Filter{Mesh: r.GetMesh()})
	if err != nil {
		return nil, err
	}
	var meshes []*meshview.Mesh
	for _, name := range slices.Sorted(maps.Keys(v.Meshes)) {
		if r.GetMesh() == "" || r.GetMesh() == name {
			meshes = append(meshes, v.Meshes[name])
		}
	}
	streams, silent := s.o.Streams(ctx)
	response := &adminv1.CheckStrictResponse{Meshes: s.o.Strict(ctx, meshes, streams), MissingReplicas: distinct(s.o.Missing(), silent)}
	for _, m := range response.GetMeshes() {
		m.PortsLeftOut = uint32(max(0, len(m.GetPorts())-maxListed))
		m.GapsLeftOut = uint32(max(0, len(m.GetGaps())-maxListed))
		m.Ports, m.Gaps = m.GetPorts()[:min(len(m.GetPorts()), maxListed)], m.GetGaps()[:min(len(m.GetGaps()), maxListed)]
	}
	return response, nil
}
