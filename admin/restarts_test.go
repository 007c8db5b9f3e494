package admin

import (
	"strings"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// TestFilesHaveNoRestarts asks a control plane without Kubernetes.
func TestFilesHaveNoRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, ctx := start(t, newFakes(t))
		for name, call := range map[string]func() error{
			"ListRestarts": func() error { _, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{}); return err },
			"ExplainRestart": func() error {
				_, err := api.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Pod: "web-1"})
				return err
			},
			"ReleaseRestarts": func() error { _, err := api.ReleaseRestarts(ctx, &adminv1.ReleaseRestartsRequest{}); return err },
		} {
			if err := call(); status.Code(err) != codes.FailedPrecondition || !strings.Contains(err.Error(), "restarts are granted on Kubernetes alone") {
				t.Errorf("%s() = %v", name, err)
			}
		}
	})
}

func TestAHeldEndpointSaysWhatSaysWhy(t *testing.T) {
	for name, want := range map[string]string{
		"web-1":        heldText,
		"web.0.shop":   heldText + ": sondectl restarts explain web.0 -n shop",
		"web-1.shop-2": heldText + ": sondectl restarts explain web-1 -n shop-2",
	} {
		if got := livenessHeld(&meshview.Proxy{Dataplane: &mesh.Dataplane{Meta: mesh.Meta{Name: name}}}); got != want {
			t.Errorf("of %s: %q, want %q", name, got, want)
		}
	}
}
