package admin

import (
	"context"

	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/health"
)

// Health has the health checks of the control plane. *health.Registry implements it.
type Health interface {
	// Results returns the results of the checks of a group. It may take as long as the slowest check.
	Results(ctx context.Context, group health.Group) []health.Result
}

// GetHealth implements adminv1.AdminServiceServer.
func (s *service) GetHealth(ctx context.Context, _ *adminv1.GetHealthRequest) (*adminv1.Health, error) {
	all := &adminv1.Health{}
	for _, group := range []health.Group{health.Livez, health.Readyz} {
		for _, r := range s.o.Health.Results(ctx, group) {
			all.Checks = append(all.Checks, healthCheck(&r))
		}
	}
	return all, nil
}

func healthCheck(r *health.Result) *adminv1.HealthCheck {
	status, reason := healthStatus(r, r.Err)
	c := &adminv1.HealthCheck{Group: string(r.Group), Name: r.Name, Status: status, Reason: reason}
	if !r.At.IsZero() {
		c.At, c.Took = timestamppb.New(r.At), durationpb.New(r.Took)
	}
	for _, change := range r.Changes {
		status, reason := healthStatus(r, change.Err)
		c.Changes = append(c.Changes, &adminv1.HealthChange{At: timestamppb.New(change.At), Status: status, Reason: reason})
	}
	return c
}

// healthStatus returns the status for the current or an earlier result of r's check.
func healthStatus(r *health.Result, err error) (adminv1.HealthCheck_Status, string) {
	switch {
	case err == nil:
		return adminv1.HealthCheck_OK, ""
	case r.Informational:
		return adminv1.HealthCheck_WARNING, err.Error()
	default:
		return adminv1.HealthCheck_FAILED, err.Error()
	}
}
