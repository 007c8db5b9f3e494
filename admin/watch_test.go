package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/health"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// without is an Access that allows all but one resource.
type without string

func (w without) Authorize(_ context.Context, _ string, needs []adminv1.Right) (string, map[adminv1.Right]error, error) {
	errs := map[adminv1.Right]error{}
	for _, need := range needs {
		if need.Resource == string(w) {
			errs[need] = status.Errorf(codes.PermissionDenied, "no right to %s", w)
		}
	}
	return "system:serviceaccount:shop:viewer", errs, nil
}

// TestWatchNeedsTheRightOfEachSection watches with a service-account token.
func TestWatchNeedsTheRightOfEachSection(t *testing.T) {
	for name, tc := range map[string]struct {
		access Access
		token  string
		want   []string
		code   codes.Code // of the end of the call, OK if it goes on
	}{
		"all rights":        {without(""), "a.b.c", []string{"HEALTH OK", "RESTARTS FailedPrecondition"}, codes.OK},
		"not for a section": {without("restarts"), "a.b.c", []string{"HEALTH OK", "RESTARTS PermissionDenied"}, codes.OK},
		"no right":          {refusing{}, "a.b.c", []string{"HEALTH PermissionDenied", "RESTARTS PermissionDenied"}, codes.PermissionDenied},
		"admin token":       {refusing{}, testToken, []string{"HEALTH OK", "RESTARTS FailedPrecondition"}, codes.OK},
		"another token":     {without(""), "wrong", nil, codes.Unauthenticated},
	} {
		virtual.Run(t, name, func(t *testing.T) {
			f := newFakes(t)
			f.Access = tc.access
			api := adminv1.NewAdminServiceClient(dial(t, serve(t, f.Options), f.roots))
			ctx, cancel := context.WithCancel(withToken(t.Context(), tc.token))
			defer cancel()
			stream, err := api.Watch(ctx, &adminv1.WatchRequest{Sections: []adminv1.WatchRequest_Section{
				adminv1.WatchRequest_HEALTH, adminv1.WatchRequest_RESTARTS,
			}})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for {
				m, err := stream.Recv()
				if err != nil || m.GetReading() != nil {
					if err == nil && tc.code != codes.OK {
						_, err = stream.Recv()
					}
					if status.Code(err) != tc.code {
						t.Errorf("the call ends with %v, want %s", err, tc.code)
					}
					break
				}
				got = append(got, m.GetSection().String()+" "+codes.Code(m.GetError().GetCode()).String())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("sections (-want +got):\n%s", diff)
			}
		})
	}
}

// TestInvalidWatchNeedsAToken checks that the request of a caller without a token is not looked at.
func TestInvalidWatchNeedsAToken(t *testing.T) {
	for token, want := range map[string]codes.Code{"wrong": codes.Unauthenticated, testToken: codes.InvalidArgument} {
		virtual.Run(t, want.String(), func(t *testing.T) {
			f := newFakes(t)
			api := adminv1.NewAdminServiceClient(dial(t, serve(t, f.Options), f.roots))
			stream, err := api.Watch(withToken(t.Context(), token), &adminv1.WatchRequest{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := stream.Recv(); status.Code(err) != want {
				t.Errorf("the call ends with %v", err)
			}
		})
	}
}

// TestServeEndsWatches checks that viewers do not delay the end of the control plane, and see why they are cut off.
func TestServeEndsWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		server, err := NewServer(f.Options)
		if err != nil {
			t.Fatal(err)
		}
		network := virtual.NewNetwork()
		lis, err := network.Listen(t.Context(), "tcp", serverAt)
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(ctx, lis) }()
		api := adminv1.NewAdminServiceClient(dial(t, network, f.roots))
		stream, err := api.Watch(withToken(t.Context(), testToken), &adminv1.WatchRequest{
			Sections: []adminv1.WatchRequest_Section{adminv1.WatchRequest_HEALTH},
		})
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // a section, and the end of the reading
			if _, err := stream.Recv(); err != nil {
				t.Fatal(err)
			}
		}
		began := time.Now()
		stop()
		if _, err := stream.Recv(); status.Code(err) != codes.Unavailable || status.Convert(err).Message() != "the control plane is stopping" {
			t.Errorf("the call ends with %v", err)
		}
		if err := <-ended; err != nil || time.Since(began) >= endTimeout {
			t.Errorf("Serve() = %v after %s", err, time.Since(began))
		}
	})
}

// changing is a Health with a long result that changes all the time.
type changing struct{}

func (changing) Results(_ context.Context, group health.Group) []health.Result {
	reason := fmt.Sprint(time.Now()) + strings.Repeat("x", 200<<10)
	return []health.Result{{Group: group, Name: "check", Err: errors.New(reason), At: time.Now()}}
}

// TestWatchOfACallerThatDoesNotRead checks that the server does not keep what the caller does not read.
func TestWatchOfACallerThatDoesNotRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Health = changing{}
		api, ctx := start(t, f)
		stream, err := api.Watch(ctx, &adminv1.WatchRequest{Sections: []adminv1.WatchRequest_Section{adminv1.WatchRequest_HEALTH}})
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		received := 0
		for err == nil {
			var m *adminv1.WatchResponse
			if m, err = stream.Recv(); m.GetSection() != 0 {
				received++
			}
		}
		if status.Code(err) != codes.Aborted || received > 2 {
			t.Errorf("after a minute it gets %d changes, and %v", received, err)
		}
	})
}
