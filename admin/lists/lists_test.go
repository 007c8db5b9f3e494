package lists

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

func TestListMeshes(t *testing.T) {
	f := newFakes(t)
	f.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
		return map[mesh.ID][]*adminv1.Stream{"default/web-1": {{}, {}}, "default/gone": {{}}}, []string{"c", "b"}
	}
	f.Missing = func() []string { return []string{"b"} }
	f.Problems = func() []*adminv1.Problem { return []*adminv1.Problem{{File: "bad.yaml", Text: "broken"}} }
	got, err := f.ListMeshes(t.Context(), &adminv1.ListMeshesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	expires := timestamppb.New(time.Unix(2e9, 0))
	want := &adminv1.ListMeshesResponse{
		Meshes: []*adminv1.Mesh{
			{Object: []byte(`{"name":"default","spec":{}}`), CaExpires: expires, Proxies: 2, Connected: 1, Services: 1, Name: "default"},
			{Object: []byte(`{"name":"other","spec":{}}`), CaExpires: expires, Proxies: 1, Name: "other"},
		},
		Tail: &adminv1.Tail{Problems: []*adminv1.Problem{{File: "bad.yaml", Text: "broken"}}, MissingReplicas: []string{"b", "c"}},
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("ListMeshes() (-want +got):\n%s", diff)
	}
}

func TestListServices(t *testing.T) {
	f := newFakes(t)
	got, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{})
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
}

func TestListProxiesTellsOfThoseWithoutADataplane(t *testing.T) {
	f := newFakes(t)
	stream := &adminv1.Stream{Types: []*adminv1.TypeStatus{{Kind: "listeners", Nacks: []*adminv1.Nack{{Resource: "x", Reason: "why"}}}}}
	agent := &adminv1.Agent{Version: "1.0.0"}
	f.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
		return map[mesh.ID][]*adminv1.Stream{"default/web-1": {stream}, "default/gone": {stream}}, nil
	}
	f.of.agents = map[mesh.ID]*adminv1.Agent{"default/gone": agent}
	got, err := f.ListProxies(t.Context(), &adminv1.ListProxiesRequest{Filter: &adminv1.Filter{Mesh: "default"}})
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
		t.Run(name, func(t *testing.T) {
			f := newFakes(t)
			response, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{Filter: tc.filter})
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
	for i := range adminv1.MaxListed + 6 {
		other.Services = other.Services.With(fmt.Sprintf("s-%d", i), web)
	}
	f.View = func() *meshview.View { return view }
	got, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{Filter: &adminv1.Filter{Mesh: "other"}})
	if err != nil {
		t.Fatal(err)
	}
	if len(got.GetServices()) != adminv1.MaxListed || got.GetTail().GetLeftOut() != 6 {
		t.Errorf("ListServices(): %d services, %d omitted, want %d and 6", len(got.GetServices()), got.GetTail().GetLeftOut(), adminv1.MaxListed)
	}
}
