package admin

import (
	"context"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// maxGrants is how many grants of a workload one response holds.
const maxGrants = 100

// restarts returns the source of what is told of restarts.
func (s *service) restarts() (Restarts, error) {
	if s.o.Restarts == nil {
		return nil, status.Error(codes.FailedPrecondition, "the control plane reads files: restarts are granted on Kubernetes alone")
	}
	return s.o.Restarts, nil
}

// ListRestarts implements adminv1.AdminServiceServer.
func (s *service) ListRestarts(ctx context.Context, r *adminv1.ListRestartsRequest) (*adminv1.ListRestartsResponse, error) {
	restarts, err := s.restarts()
	if err != nil {
		return nil, err
	}
	response, err := restarts.List(ctx, r.GetNamespace())
	if err != nil {
		return nil, err
	}
	total := len(response.GetRestarts())
	response.Restarts = response.GetRestarts()[:min(total, maxListed)]
	response.Unhelpful = response.GetUnhelpful()[:min(len(response.GetUnhelpful()), maxListed)]
	if response.Tail == nil {
		response.Tail = &adminv1.Tail{}
	}
	response.Tail.LeftOut = uint32(total - len(response.GetRestarts()))
	withMissing(response.GetTail(), s.o.Missing())
	return response, nil
}

// ExplainRestart implements adminv1.AdminServiceServer.
func (s *service) ExplainRestart(ctx context.Context, r *adminv1.ExplainRestartRequest) (*adminv1.ExplainRestartResponse, error) {
	restarts, err := s.restarts()
	if err != nil {
		return nil, err
	}
	if r.GetPod() == "" {
		return nil, status.Error(codes.InvalidArgument, "pod: must not be empty")
	}
	response, err := restarts.Explain(ctx, r.GetNamespace(), r.GetPod())
	if err != nil {
		return nil, err
	}
	if w := response.GetWorkload(); len(w.GetGrants()) > maxGrants {
		w.LeftOut = uint32(len(w.GetGrants()) - maxGrants)
		w.Grants = w.GetGrants()[:maxGrants]
	}
	response.MissingReplicas = withMissing(&adminv1.Tail{MissingReplicas: response.GetMissingReplicas()}, s.o.Missing()).GetMissingReplicas()
	return response, nil
}

// ReleaseRestarts implements adminv1.AdminServiceServer.
func (s *service) ReleaseRestarts(ctx context.Context, r *adminv1.ReleaseRestartsRequest) (*adminv1.ReleaseRestartsResponse, error) {
	restarts, err := s.restarts()
	if err != nil {
		return nil, err
	}
	response, err := restarts.Release(ctx, r.GetNamespace(), r.GetWorkload())
	if err != nil {
		return nil, err
	}
	s.o.Logger.InfoContext(ctx, "restarts released", "workload", response.GetWorkload(), "released", response.GetReleased(), "peer", peerAddress(ctx), "caller", callerOf(ctx))
	return response, nil
}
