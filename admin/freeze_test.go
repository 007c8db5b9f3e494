package admin

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

func TestFreezeZone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		api, ctx := start(t, f)
		if _, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: "a"}); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "on Kubernetes alone") {
			t.Errorf("FreezeZone() without zones: %v", err)
		}
		f = newFakes(t)
		f.Freeze = func(_ context.Context, r *adminv1.FreezeZoneRequest) (*adminv1.FreezeZoneResponse, error) {
			if r.GetZone() != "a" {
				return nil, status.Error(codes.NotFound, "no such zone")
			}
			return &adminv1.FreezeZoneResponse{KeptPercent: 90, DryRun: r.GetThaw()}, nil
		}
		api, ctx = start(t, f)
		if r, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: "a", Thaw: true}); err != nil || r.GetKeptPercent() != 90 || !r.GetDryRun() {
			t.Errorf("FreezeZone() = %v, %v", r, err)
		}
		if _, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "zone: must not be empty") {
			t.Errorf("FreezeZone() of no zone: %v", err)
		}
		if _, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: strings.Repeat("x", 64)}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "zone: 64 bytes: must have at most 63") {
			t.Errorf("FreezeZone() of a long zone: %v", err)
		}
		if _, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: "b"}); status.Code(err) != codes.NotFound {
			t.Errorf("FreezeZone() of a zone that is none: %v", err)
		}
	})
}
