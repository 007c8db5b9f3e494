package admin

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// Rotations answers calls about rotations of certificate authorities. *rotation.Rotations implements it.
type Rotations interface {
	RotateCA(context.Context, *adminv1.RotateCARequest) (*adminv1.Rotation, error)
	GetRotation(context.Context, *adminv1.GetRotationRequest) (*adminv1.Rotation, error)
	RotateServingCA(context.Context, *adminv1.RotateServingCARequest) (*adminv1.Rotation, error)
	GetServingRotation(context.Context, *adminv1.GetServingRotationRequest) (*adminv1.Rotation, error)
}

// Strict answers calls about the traffic that meshes would reject in mode STRICT. *strict.Answers implements it.
type Strict interface {
	CheckStrict(context.Context, *adminv1.CheckStrictRequest) (*adminv1.CheckStrictResponse, error)
}

// Restarts answers calls about restarts of containers whose guarded liveness probe fails. *restarts.Answers implements
// it.
type Restarts interface {
	ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error)
	ExplainRestart(context.Context, *adminv1.ExplainRestartRequest) (*adminv1.ExplainRestartResponse, error)
	ReleaseRestarts(context.Context, *adminv1.ReleaseRestartsRequest) (*adminv1.ReleaseRestartsResponse, error)
}

// noRestarts answers for a control plane without Kubernetes.
type noRestarts struct{}

var errNoRestarts = status.Error(codes.FailedPrecondition,
	"the control plane reads files: restarts are granted only on Kubernetes")

func (noRestarts) ListRestarts(context.Context, *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	return nil, errNoRestarts
}

func (noRestarts) ExplainRestart(
	context.Context, *adminv1.ExplainRestartRequest,
) (*adminv1.ExplainRestartResponse, error) {
	return nil, errNoRestarts
}

func (noRestarts) ReleaseRestarts(
	context.Context, *adminv1.ReleaseRestartsRequest,
) (*adminv1.ReleaseRestartsResponse, error) {
	return nil, errNoRestarts
}

// Freeze answers calls that freeze or thaw a zone. *freeze.Answers implements it.
type Freeze interface {
	FreezeZone(context.Context, *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error)
}

// noFreeze answers for a control plane without Kubernetes.
type noFreeze struct{}

func (noFreeze) FreezeZone(context.Context, *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	return nil, status.Error(codes.FailedPrecondition,
		"the control plane reads files: zones exist only on Kubernetes")
}
