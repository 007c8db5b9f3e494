package admin

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// FreezeZone implements adminv1.AdminServiceServer.
func (s *service) FreezeZone(ctx context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	if s.o.Freeze == nil {
		return nil, status.Error(codes.FailedPrecondition, "the control plane reads files: there are zones on Kubernetes alone")
	}
	if r.GetZone() == "" {
		return nil, status.Error(codes.InvalidArgument, "zone: must not be empty")
	}
	response, err := s.o.Freeze(ctx, r)
	if err != nil {
		return nil, err
	}
	s.o.Logger.InfoContext(ctx, "zone ordered to freeze or thaw", "zone", r.GetZone(), "thaw", r.GetThaw(), "keptPercent", response.GetKeptPercent(), "peer", peerAddress(ctx))
	return response, nil
}
