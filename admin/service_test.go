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
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestNothingIsKnownBeforeTheFirstView(t *testing.T) {
	f := newFakes(t)
	f.View = func() *meshview.View { return nil }
	s := &service{o: f.Options}
	calls := map[string]func(context.Context) error{
		"ListMeshes":     func(ctx context.Context) error { _, err := s.ListMeshes(ctx, nil); return err },
		"ListDataplanes": func(ctx context.Context) error { _, err := s.ListDataplanes(ctx, nil); return err },
		"ListServices":   func(ctx context.Context) error { _, err := s.ListServices(ctx, nil); return err },
		"ListProxies":    func(ctx context.Context) error { _, err := s.ListProxies(ctx, nil); return err },
		"InspectDataplane": func(ctx context.Context) error {
			_, err := s.InspectDataplane(ctx, &adminv1.InspectDataplaneRequest{Kind: "routes"})
			return err
		},
		"Token":       func(ctx context.Context) error { _, err := s.GenerateDataplaneToken(ctx, nil); return err },
		"RotateCA":    func(ctx context.Context) error { _, err := s.RotateCA(ctx, nil); return err },
		"GetRotation": func(ctx context.Context) error { _, err := s.GetRotation(ctx, nil); return err },
	}
	for name, call := range calls {
		synctest.Test(t, func(t *testing.T) {
			begun := time.Now()
			if err := call(t.Context()); status.Code(err) != codes.Unavailable || time.Since(begun) != firstViewTimeout {
				t.Errorf("%s: %v after %s, want %s after %s", name, err, time.Since(begun), codes.Unavailable, firstViewTimeout)
			}
		})
	}
	if len(f.rotated) > 0 {
		t.Errorf("rotated %v without a view", f.rotated)
	}
}

func TestTheFirstViewIsWaitedFor(t *testing.T) {
	f := newFakes(t)
	synctest.Test(t, func(t *testing.T) {
		view, begun := f.View(), time.Now()
		f.View = func() *meshview.View {
			if time.Since(begun) < time.Second {
				return nil
			}
			return view
		}
		o, err := f.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		got, err := (&service{o: o}).ListServices(t.Context(), nil)
		if err != nil || len(got.GetServices()) == 0 || time.Since(begun) != time.Second {
			t.Errorf("ListServices() = %v, %v after %s, want those of the first view, after %s", got, err, time.Since(begun), time.Second)
		}
	})
}

func TestListMeshes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
			return map[mesh.ID][]*adminv1.Stream{"default/web-1": {{}, {}}, "default/gone": {{}}}, []string{"c", "b"}
		}
		f.Missing = func() []string { return []string{"b"} }
		f.Problems = func() []*adminv1.Problem { return []*adminv1.Problem{{File: "bad.yaml", Text: "broken"}} }
		api, ctx := start(t, f)
		got, err := api.ListMeshes(ctx, &adminv1.ListMeshesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		expires := timestamppb.New(time.Unix(2e9, 0))
		want := &adminv1.ListMeshesResponse{
			Meshes: []*adminv1.Mesh{
				{Object: []byte(`{"name":"default","spec":{}}`), CaExpires: expires, Proxies: 2, Connected: 1, Services: 1},
				{Object: []byte(`{"name":"other","spec":{}}`), CaExpires: expires, Proxies: 1},
			},
			Tail: &adminv1.Tail{Problems: []*adminv1.Problem{{File: "bad.yaml", Text: "broken"}}, MissingReplicas: []string{"b", "c"}},
		}
		if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
			t.Errorf("ListMeshes() (-want +got):\n%s", diff)
		}
	})
}

func TestListServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api, ctx := start(t, newFakes(t))
		got, err := api.ListServices(ctx, &adminv1.ListServicesRequest{})
		if err != nil {
			t.Fatal(err)
		}
		want := []*adminv1.Service{{
			Mesh: "default", Name: "web", Protocol: "http", Addresses: []string{"240.0.0.1:80"},
			Identities: []string{"spiffe://default.sonde.internal/workload/web"},
			Endpoints: []*adminv1.Endpoint{
				{Address: "10.0.0.1:80", Health: adminv1.Endpoint_READY, Sidecar: true, GetsTraffic: true},
				{Address: "10.0.0.2:80", Health: adminv1.Endpoint_DRAINING, Sidecar: true},
				{Address: "10.0.0.3:80", Health: adminv1.Endpoint_NOT_READY},
			},
		}}
		if diff := cmp.Diff(want, got.GetServices(), protocmp.Transform()); diff != "" {
			t.Errorf("ListServices() (-want +got):\n%s", diff)
		}
	})
}

func TestListProxiesTellsOfThoseWithoutADataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		stream := &adminv1.Stream{Types: []*adminv1.TypeStatus{{Kind: "listeners", Nacks: []*adminv1.Nack{{Resource: "x", Reason: "why"}}}}}
		agent := &adminv1.Agent{Version: "1.0.0"}
		f.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
			return map[mesh.ID][]*adminv1.Stream{"default/web-1": {stream}, "default/gone": {stream}}, nil
		}
		f.Agents = func() map[mesh.ID]*adminv1.Agent { return map[mesh.ID]*adminv1.Agent{"default/gone": agent} }
		api, ctx := start(t, f)
		got, err := api.ListProxies(ctx, &adminv1.ListProxiesRequest{Filter: &adminv1.Filter{Mesh: "default"}})
		if err != nil {
			t.Fatal(err)
		}
		want := []*adminv1.Proxy{
			{Mesh: "default", Name: "gone", Agent: agent, Streams: []*adminv1.Stream{stream}},
			{Mesh: "default", Name: "web-1", Known: true, Streams: []*adminv1.Stream{stream}, Drain: "node a goes; serves on: there is no other"},
			{Mesh: "default", Name: "web-2", Known: true, Draining: true},
		}
		if diff := cmp.Diff(want, got.GetProxies(), protocmp.Transform()); diff != "" {
			t.Errorf("ListProxies() (-want +got):\n%s", diff)
		}
	})
}

func TestFilter(t *testing.T) {
	tests := map[string]struct {
		filter *adminv1.Filter
		want   []string
		code   codes.Code
	}{
		"none":                     {nil, []string{"default/web-1 false", "default/web-2 true", "other/web-1 true"}, codes.OK},
		"mesh":                     {&adminv1.Filter{Mesh: "other"}, []string{"other/web-1 true"}, codes.OK},
		"name":                     {&adminv1.Filter{Name: "web-1"}, []string{"default/web-1 false", "other/web-1 true"}, codes.OK},
		"both":                     {&adminv1.Filter{Mesh: "default", Name: "web-1"}, []string{"default/web-1 false"}, codes.OK},
		"unknown name":             {&adminv1.Filter{Name: "web"}, nil, codes.OK},
		"mesh that does not exist": {&adminv1.Filter{Mesh: "nowhere"}, nil, codes.NotFound},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			api, ctx := start(t, newFakes(t))
			response, err := api.ListDataplanes(ctx, &adminv1.ListDataplanesRequest{Filter: tc.filter})
			if status.Code(err) != tc.code {
				t.Fatalf("ListDataplanes() error = %v, want %s", err, tc.code)
			}
			var got []string
			for _, d := range response.GetDataplanes() {
				var head mesh.Meta
				decode(t, d.GetObject(), &head)
				got = append(got, fmt.Sprintf("%s %t", head.ID(), d.GetDraining()))
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("ListDataplanes() (-want +got):\n%s", diff)
			}
		})
	}
}

func TestALongListSaysWhatItLeavesOut(t *testing.T) {
	f := newFakes(t)
	view := testView()
	web := view.Meshes["default"].Services.Get("web")
	other := view.Meshes["other"]
	for i := range maxListed + 6 {
		other.Services = other.Services.With(fmt.Sprintf("s-%d", i), web)
	}
	f.View = func() *meshview.View { return view }
	s := &service{o: mustComplete(t, f.Options)}
	got, err := s.ListServices(t.Context(), &adminv1.ListServicesRequest{Filter: &adminv1.Filter{Mesh: "other"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetServices()) != maxListed || got.GetTail().GetLeftOut() != 6 {
		t.Errorf("ListServices(): %d services, %d left out, want %d and 6", len(got.GetServices()), got.GetTail().GetLeftOut(), maxListed)
	}
}

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
				t.Errorf("it expires at %s, want what the signer says", got.AsTime())
			}
			log := f.log.String()
			if logged := strings.Contains(log, "dataplane token issued"); logged != (err == nil) {
				t.Errorf("the log has a line about a token: %t, want one for each that was signed:\n%s", logged, log)
			}
			if strings.Contains(log, "signed:") {
				t.Errorf("the log holds a token:\n%s", log)
			}
		})
	}
}

func TestRotateCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		api, ctx := start(t, f)
		for _, force := range []bool{false, true} {
			rotation, err := api.RotateCA(ctx, &adminv1.RotateCARequest{Mesh: "default", Force: force})
			if err != nil || rotation.GetStep() != adminv1.Rotation_TRUST_BOTH || rotation.GetWaiting()[0].GetName() != "web-1" {
				t.Errorf("RotateCA(force %t) = %v, %v", force, rotation, err)
			}
		}
		if _, err := api.RotateCA(ctx, &adminv1.RotateCARequest{Mesh: "nowhere"}); status.Code(err) != codes.NotFound {
			t.Errorf("RotateCA() of an unknown mesh: %v", err)
		}
		if diff := cmp.Diff([]string{"default", "default forced"}, f.rotated); diff != "" {
			t.Errorf("calls of Rotate (-want +got):\n%s", diff)
		}
		rotation, err := api.GetRotation(ctx, &adminv1.GetRotationRequest{Mesh: "default"})
		if err != nil || rotation.GetStep() != adminv1.Rotation_IDLE || len(f.rotated) != 2 {
			t.Errorf("GetRotation() = %v, %v; rotated %v", rotation, err, f.rotated)
		}
		if n := strings.Count(f.log.String(), "CA rotation requested"); n != 2 {
			t.Errorf("%d lines about rotations in the log, want 2:\n%s", n, f.log)
		}
	})
}

func TestRotateServingCA(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		api, ctx := start(t, f)
		for _, r := range []*adminv1.RotateServingCARequest{{}, {Force: true}, {Proceed: true}} {
			rotation, err := api.RotateServingCA(ctx, r)
			if err != nil || rotation.GetStep() != adminv1.Rotation_TRUST_BOTH || !rotation.GetPaused() {
				t.Errorf("RotateServingCA(%v) = %v, %v", r, rotation, err)
			}
		}
		rotation, err := api.GetServingRotation(ctx, &adminv1.GetServingRotationRequest{})
		if err != nil || rotation.GetStep() != adminv1.Rotation_TRUST_NEW {
			t.Errorf("GetServingRotation() = %v, %v", rotation, err)
		}
		if diff := cmp.Diff([]string{"serving false false", "serving true false", "serving false true"}, f.rotated); diff != "" {
			t.Errorf("calls of RotateServing (-want +got):\n%s", diff)
		}
		if n := strings.Count(f.log.String(), "serving CA rotation requested"); n != 3 {
			t.Errorf("%d lines about rotations in the log, want 3:\n%s", n, f.log)
		}
	})
}

// broken is a Rotator that cannot read its state.
type broken struct{}

func (broken) Rotate(context.Context, string, bool) (*adminv1.Rotation, error) {
	return nil, errors.New("disk full")
}
func (broken) Rotation(context.Context, string) (*adminv1.Rotation, error) {
	return nil, errors.New("disk gone")
}
func (broken) RotateServing(context.Context, bool, bool) (*adminv1.Rotation, error) {
	return nil, errors.New("disk full")
}
func (broken) ServingRotation(context.Context) (*adminv1.Rotation, error) {
	return nil, errors.New("disk gone")
}

func TestRotationSaysWhyItFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Rotator = broken{}
		api, ctx := start(t, f)
		if _, err := api.RotateCA(ctx, &adminv1.RotateCARequest{Mesh: "default"}); err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("RotateCA() error = %v", err)
		}
		if _, err := api.GetRotation(ctx, &adminv1.GetRotationRequest{Mesh: "default"}); err == nil || !strings.Contains(err.Error(), "disk gone") {
			t.Errorf("GetRotation() error = %v", err)
		}
		if _, err := api.RotateServingCA(ctx, &adminv1.RotateServingCARequest{}); err == nil || !strings.Contains(err.Error(), "rotate the serving CA: disk full") {
			t.Errorf("RotateServingCA() error = %v", err)
		}
		if _, err := api.GetServingRotation(ctx, &adminv1.GetServingRotationRequest{}); err == nil || !strings.Contains(err.Error(), "disk gone") {
			t.Errorf("GetServingRotation() error = %v", err)
		}
		if strings.Contains(f.log.String(), "CA rotation requested") {
			t.Error("a rotation that did not happen is in the log")
		}
	})
}
