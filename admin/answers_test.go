package admin

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// TestFiles queries a control plane without Kubernetes.
func TestFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, ctx := start(t, newFakes(t))
		for name, call := range map[string]func() error{
			"FreezeZone":   func() error { _, err := api.FreezeZone(ctx, &adminv1.FreezeZoneRequest{Zone: "a"}); return err },
			"ListRestarts": func() error { _, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{}); return err },
			"ExplainRestart": func() error {
				_, err := api.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Pod: "web-1"})
				return err
			},
			"ReleaseRestarts": func() error { _, err := api.ReleaseRestarts(ctx, &adminv1.ReleaseRestartsRequest{}); return err },
		} {
			if err := call(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "the control plane reads files: ") {
				t.Errorf("%s() = %v", name, err)
			}
		}
	})
}
