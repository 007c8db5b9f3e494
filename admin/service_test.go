package admin

import (
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestInspectDataplane(t *testing.T) {
	tests := map[string]struct {
		request *adminv1.InspectDataplaneRequest
		want    string
		code    codes.Code
		err     string
	}{
		"clusters":     {request: inspect("default", "web-1", "clusters"), want: `{"name":"cluster-of-clusters"}`},
		"bootstrap":    {request: inspect("", "web-2", "bootstrap"), want: `{"node":{"id":"default/web-2"}}`},
		"unknown kind": {request: inspect("default", "web-1", "secrets"), code: codes.InvalidArgument, err: "listeners clusters endpoints routes bootstrap"},
		"unknown name": {request: inspect("", "api", "routes"), code: codes.NotFound, err: `dataplane "api" not found in any mesh`},
		"a near name":  {request: inspect("", "wbe-1", "routes"), code: codes.NotFound, err: `dataplane "wbe-1" not found in any mesh: did you mean "web-1"?`},
		"of one mesh":  {request: inspect("other", "web-2", "routes"), code: codes.NotFound, err: `dataplane "web-2" of mesh "other" not found: did you mean "web-1"?`},
		"unknown mesh": {request: inspect("x", "web-1", "routes"), code: codes.NotFound, err: `mesh "x" not found`},
		"a near mesh":  {request: inspect("dfault", "web-1", "routes"), code: codes.NotFound, err: `mesh "dfault" not found: did you mean "default"?`},
		"two meshes":   {request: inspect("", "web-1", "routes"), code: codes.InvalidArgument, err: "default, other"},
		"not made yet": {request: inspect("other", "web-1", "routes"), code: codes.Unavailable, err: "other/web-1"},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			api, ctx := start(t, newFakes(t))
			response, err := api.InspectDataplane(ctx, tc.request)
			if status.Code(err) != tc.code || tc.err != "" && !strings.Contains(err.Error(), tc.err) {
				t.Fatalf("InspectDataplane() error = %v, want %s with %q", err, tc.code, tc.err)
			}
			var got []string
			for _, body := range response.GetResources() {
				got = append(got, strings.ReplaceAll(string(body), " ", "")) // protojson adds spaces at random
			}
			if tc.want != "" && !cmp.Equal(got, []string{tc.want}) {
				t.Errorf("InspectDataplane() = %v, want %s", got, tc.want)
			}
		})
	}
}

func inspect(meshName, name, kind string) *adminv1.InspectDataplaneRequest {
	return &adminv1.InspectDataplaneRequest{Mesh: meshName, Name: name, Kind: kind}
}

func TestInspectDataplaneSaysWhyThereIsNoBootstrap(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Bootstrap = func(*meshview.Proxy) ([]byte, error) { return nil, errors.New("no address") }
		api, ctx := start(t, f)
		_, err := api.InspectDataplane(ctx, inspect("default", "web-1", "bootstrap"))
		if err == nil || !strings.Contains(err.Error(), "make the bootstrap of default/web-1: no address") {
			t.Errorf("InspectDataplane() error = %v", err)
		}
	})
}

func TestGenerateDataplaneToken(t *testing.T) {
	tests := map[string]struct {
		mesh, name, workload string
		validity             time.Duration
		want                 string
		code                 codes.Code
	}{
		"no workload, a near name":      {"default", "web1", "", time.Hour, "", codes.InvalidArgument},
		"all given":                     {"default", "db-1", "db", time.Hour, "signed:default:db-1:/workload/db:1h0m0s", codes.OK},
		"workload of the dataplane":     {"default", "web-1", "", time.Hour, "signed:default:web-1:/workload/web:1h0m0s", codes.OK},
		"the same workload":             {"default", "web-1", "web", time.Hour, "signed:default:web-1:/workload/web:1h0m0s", codes.OK},
		"another workload":              {"default", "web-1", "shop", time.Hour, "", codes.FailedPrecondition},
		"no workload, unknown":          {"default", "db-1", "", time.Hour, "", codes.InvalidArgument},
		"of a pod":                      {"default", "web-2", "web", time.Hour, "", codes.FailedPrecondition},
		"without a workload":            {"default", "alone-1", "", time.Hour, "signed:default:alone-1:/dataplane/alone-1:1h0m0s", codes.OK},
		"a workload that it has not":    {"default", "alone-1", "web", time.Hour, "", codes.FailedPrecondition},
		"unknown mesh":                  {"nowhere", "web-1", "web", time.Hour, "", codes.NotFound},
		"what the signer does not take": {"default", "web-1", "web", 0, "", codes.InvalidArgument},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			f := newTokenFakes(t)
			api, ctx := start(t, f)
			response, err := api.GenerateDataplaneToken(ctx, &adminv1.GenerateDataplaneTokenRequest{
				Mesh: tc.mesh, Name: tc.name, Workload: tc.workload, ValidFor: durationpb.New(tc.validity),
			})
			if status.Code(err) != tc.code || response.GetToken() != tc.want {
				t.Errorf("GenerateDataplaneToken() = %q, %v, want %q, %s", response.GetToken(), err, tc.want, tc.code)
			}
			if got := response.GetExpires(); err == nil && !got.AsTime().Equal(time.Unix(0, 0).Add(tc.validity)) {
				t.Errorf("it expires at %s, want the signer's time", got.AsTime())
			}
			log := f.log.String()
			if logged := strings.Contains(log, "dataplane token issued"); logged != (err == nil) {
				t.Errorf("the log has a line about a token: %t, want one for each signed token:\n%s", logged, log)
			}
			if strings.Contains(log, "signed:") {
				t.Errorf("the log contains a token:\n%s", log)
			}
		})
	}
}
