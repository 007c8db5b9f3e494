package freeze

import (
	"context"
	"strings"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/sonde-mesh/sonde/admin/caller"
	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// maxZone is the maximum length of a label's value.
const maxZone = 63

// Answers freezes and thaws zones for the admin API. Errors are gRPC statuses. All fields are required.
type Answers struct {
	Freeze *Freeze
	Others Others
}

// Others are the other replicas. *replicas.Peers implements it.
type Others interface {
	// OrderFreeze asks the leader to freeze or thaw a zone. done is nil if no replica did it; missing are the replicas
	// that did not answer.
	OrderFreeze(
		context.Context, *adminv1.FreezeZoneRequest,
	) (done *adminv1.FreezeZoneResponse, missing []string, err error)
}

// FreezeZone implements adminv1.AdminServiceServer.
func (a *Answers) FreezeZone(ctx context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	switch n := len(r.GetZone()); {
	case n == 0:
		return nil, status.Error(codes.InvalidArgument, "zone: must not be empty")
	case n > maxZone:
		return nil, status.Errorf(codes.InvalidArgument, "zone: %d bytes: must have at most %d, as the value of a label",
			n, maxZone)
	}
	done, err := a.order(ctx, r)
	if err != nil {
		return nil, err
	}
	caller.Log(ctx, a.Freeze.o.Logger).InfoContext(ctx, "zone ordered to freeze or thaw", "zone", r.GetZone(),
		"thaw", r.GetThaw(), "keptPercent", done.GetKeptPercent())
	return done, nil
}

// order asks the leader to freeze or thaw a zone.
func (a *Answers) order(ctx context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
	if done, err := a.Freeze.Order(r); done != nil || err != nil {
		return done, err
	}
	done, missing, err := a.Others.OrderFreeze(ctx, r)
	switch {
	case done != nil || err != nil:
		return done, err //nolint:wrapcheck // it is a status
	case len(missing) > 0:
		return nil, status.Error(codes.Unavailable, "no replica that answered leads, and these did not answer: "+
			strings.Join(missing, ", "))
	}
	return nil, status.Error(codes.Unavailable, "no replica leads now: try again")
}
