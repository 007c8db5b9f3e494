package admin

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Restarts answers calls about restarts of containers whose guarded liveness probe fails.
type Restarts interface {
	ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error)
	ExplainRestart(context.Context, *adminv1.ExplainRestartRequest) (*adminv1.ExplainRestartResponse, error)
	ReleaseRestarts(context.Context, *adminv1.ReleaseRestartsRequest) (*adminv1.ReleaseRestartsResponse, error)
}

// noRestarts answers for a control plane that reads files.
type noRestarts struct{}

var errNoRestarts = status.Error(codes.FailedPrecondition, "the control plane reads files: restarts are granted on Kubernetes alone")

func (noRestarts) ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	return nil, errNoRestarts
}

func (noRestarts) ExplainRestart(context.Context, *adminv1.ExplainRestartRequest) (*adminv1.ExplainRestartResponse, error) {
	return nil, errNoRestarts
}

func (noRestarts) ReleaseRestarts(context.Context, *adminv1.ReleaseRestartsRequest) (*adminv1.ReleaseRestartsResponse, error) {
	return nil, errNoRestarts
}

// Freeze answers calls that freeze or thaw a zone.
type Freeze interface {
	FreezeZone(context.Context, *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error)
}

// noFreeze answers for a control plane that reads files.
type noFreeze struct{}

func (noFreeze) FreezeZone(context.Context, *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	return nil, status.Error(codes.FailedPrecondition, "the control plane reads files: there are zones on Kubernetes alone")
}
