package admin

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// fakeRestarts has as many restarts, workloads that wait and grants as it says.
type fakeRestarts int

func (f fakeRestarts) List(_ context.Context, namespace string) (*adminv1.ListRestartsResponse, error) {
	if namespace == "none" {
		return nil, status.Error(codes.NotFound, "it has no guarded pod")
	}
	r := &adminv1.ListRestartsResponse{Round: &adminv1.RestartRound{Replica: "a"}}
	if f > 0 {
		r.Tail = &adminv1.Tail{MissingReplicas: []string{"c"}}
	}
	for i := range int(f) {
		r.Restarts = append(r.Restarts, &adminv1.Restart{Pod: fmt.Sprint(namespace, i)})
		r.Unhelpful = append(r.Unhelpful, strconv.Itoa(i))
	}
	return r, nil
}

func (f fakeRestarts) Explain(_ context.Context, namespace, pod string) (*adminv1.ExplainRestartResponse, error) {
	r := &adminv1.ExplainRestartResponse{Namespace: namespace, Pod: pod, MissingReplicas: []string{"c"}, Workload: &adminv1.RestartWorkload{}}
	for i := range int(f) {
		r.Workload.Grants = append(r.Workload.Grants, &adminv1.RestartGrant{Restarts: uint32(i)})
	}
	return r, nil
}

func (f fakeRestarts) Release(_ context.Context, namespace, workload string) (*adminv1.ReleaseRestartsResponse, error) {
	return &adminv1.ReleaseRestartsResponse{Workload: namespace + " " + workload, Released: uint32(f)}, nil
}

func TestRestarts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Restarts = fakeRestarts(2)
		f.Missing = func() []string { return []string{"b"} }
		api, ctx := start(t, f)
		got, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: "shop"})
		if err != nil {
			t.Fatal(err)
		}
		want := &adminv1.ListRestartsResponse{
			Restarts: []*adminv1.Restart{{Pod: "shop0"}, {Pod: "shop1"}}, Unhelpful: []string{"0", "1"}, Round: &adminv1.RestartRound{Replica: "a"},
			Tail: &adminv1.Tail{MissingReplicas: []string{"b", "c"}},
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("ListRestarts() (-want +got):\n%s", diff)
		}
		if _, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{Namespace: "none"}); status.Code(err) != codes.NotFound {
			t.Errorf("ListRestarts() of a namespace without guarded pods: %v", err)
		}
		explained, err := api.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Namespace: "shop", Pod: "web-1"})
		if err != nil || explained.GetPod() != "web-1" || len(explained.GetWorkload().GetGrants()) != 2 || strings.Join(explained.GetMissingReplicas(), " ") != "b c" {
			t.Errorf("ExplainRestart() = %v, %v", explained, err)
		}
		if _, err := api.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Namespace: "shop"}); status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "pod: must not be empty") {
			t.Errorf("ExplainRestart() without a pod: %v", err)
		}
		released, err := api.ReleaseRestarts(ctx, &adminv1.ReleaseRestartsRequest{Namespace: "shop", Workload: "deployment/web"})
		if err != nil || released.GetReleased() != 2 || released.GetWorkload() != "shop deployment/web" {
			t.Errorf("ReleaseRestarts() = %v, %v", released, err)
		}
		if log := f.log.String(); !strings.Contains(log, `msg="restarts released" workload="shop deployment/web" released=2 peer=`) {
			t.Errorf("the log has %q", log)
		}
	})
}

func TestAnswersAboutRestartsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Restarts = fakeRestarts(maxListed + 3)
		api, ctx := start(t, f)
		got, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{})
		if err != nil || len(got.GetRestarts()) != maxListed || len(got.GetUnhelpful()) != maxListed || got.GetTail().GetLeftOut() != 3 {
			t.Errorf("ListRestarts() has %d, %d and leaves out %d: %v", len(got.GetRestarts()), len(got.GetUnhelpful()), got.GetTail().GetLeftOut(), err)
		}
		explained, err := api.ExplainRestart(ctx, &adminv1.ExplainRestartRequest{Pod: "web-1"})
		if w := explained.GetWorkload(); err != nil || len(w.GetGrants()) != maxGrants || w.GetLeftOut() != maxListed+3-maxGrants || w.GetGrants()[0].GetRestarts() != 0 {
			t.Errorf("ExplainRestart() has %d grants and leaves out %d: %v", len(w.GetGrants()), w.GetLeftOut(), err)
		}
		f.Restarts = fakeRestarts(0)
		api, ctx = start(t, f)
		if got, err := api.ListRestarts(ctx, &adminv1.ListRestartsRequest{}); err != nil || got.GetTail() == nil {
			t.Errorf("ListRestarts() = %v, %v", got, err)
		}
	})
}

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
