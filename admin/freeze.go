package admin

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/admin/caller"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// maxZone is that of the value of a label.
const maxZone = 63

// FreezeZone implements adminv1.AdminServiceServer.
func (s *service) FreezeZone(ctx context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	if s.o.Freeze == nil {
		return nil, status.Error(codes.FailedPrecondition, "the control plane reads files: there are zones on Kubernetes alone")
	}
	switch n := len(r.GetZone()); {
	case n == 0:
		return nil, status.Error(codes.InvalidArgument, "zone: must not be empty")
	case n > maxZone:
		return nil, status.Errorf(codes.InvalidArgument, "zone: %d bytes: must have at most %d, as the value of a label", n, maxZone)
	}
	response, err := s.o.Freeze(ctx, r)
	if err != nil {
		return nil, err
	}
	caller.Log(ctx, s.o.Logger).InfoContext(ctx, "zone ordered to freeze or thaw", "zone", r.GetZone(), "thaw", r.GetThaw(), "keptPercent", response.GetKeptPercent())
	return response, nil
}
