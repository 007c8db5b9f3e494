package main

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// madeUpFreeze is a fake with the zones a and b, which thaws a slowly.
type madeUpFreeze struct{}

func (madeUpFreeze) FreezeZone(_ context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	switch {
	case r.GetZone() == "b":
		return &adminv1.FreezeZoneResponse{DryRun: true}, nil
	case r.GetZone() != "a":
		return nil, status.Error(codes.NotFound, `zone: "`+r.GetZone()+`": must be one with nodes that have pods of the mesh: a, b`)
	case r.GetThaw():
		return &adminv1.FreezeZoneResponse{KeptPercent: 90, Since: before(time.Hour)}, nil
	}
	return &adminv1.FreezeZoneResponse{KeptPercent: 100, Since: before(3 * time.Minute)}, nil
}
