package lists

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// podFakes has pods with a probe set each, by their names.
func podFakes(t *testing.T, sets map[string]uint64, text string) *fakes {
	t.Helper()
	f, view := newFakes(t), testView()
	for name := range sets {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: name}, Identity: mesh.Identity{Instance: name}}
		view.Meshes["default"].Proxies = view.Meshes["default"].Proxies.With(name, &meshview.Proxy{Dataplane: d})
	}
	f.View = func() *meshview.View { return view }
	f.PodState = func(name string) *adminv1.PodState { return &adminv1.PodState{ProbeSet: sets[name]} }
	f.ProbesOf = func(name string) *adminv1.ProbeSet {
		if sets[name] == 0 {
			return nil
		}
		return &adminv1.ProbeSet{Id: sets[name], Probes: []*adminv1.ProbeText{{Container: "app", Written: text}}}
	}
	return f
}

func probeSetsOf(t *testing.T, f *fakes, r *adminv1.ListDataplanesRequest) []*adminv1.ProbeSet {
	t.Helper()
	got, err := f.ListDataplanes(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return got.GetProbeSets()
}

// Each set of the listed pods is there once, if it was requested.
func TestProbeSets(t *testing.T) {
	f := podFakes(t, map[string]uint64{"a.shop": 9, "b.shop": 3, "c.shop": 9, "d.shop": 0}, "exec /a")
	var got []uint64
	for _, set := range probeSetsOf(t, f, &adminv1.ListDataplanesRequest{ProbeSets: true}) {
		got = append(got, set.GetId())
	}
	if diff := cmp.Diff([]uint64{3, 9}, got); diff != "" {
		t.Errorf("the sets (-want +got):\n%s", diff)
	}
	if got := probeSetsOf(t, f, &adminv1.ListDataplanesRequest{ProbeSets: true, Filter: &adminv1.Filter{Name: "b.shop"}}); len(got) != 1 || got[0].GetId() != 3 {
		t.Errorf("of one pod: %v", got)
	}
	if got := probeSetsOf(t, f, &adminv1.ListDataplanesRequest{}); got != nil {
		t.Errorf("without a request: %v", got)
	}
	f.ProbesOf = func(string) *adminv1.ProbeSet { return &adminv1.ProbeSet{Id: 3} }
	if got := probeSetsOf(t, f, &adminv1.ListDataplanesRequest{ProbeSets: true}); len(got) != 1 {
		t.Errorf("a pod that has been replaced: %v", got)
	}
	f.ProbesOf = nil
	if got := probeSetsOf(t, f, &adminv1.ListDataplanesRequest{ProbeSets: true}); got != nil {
		t.Errorf("without Kubernetes: %v", got)
	}
}

func TestProbeSetsAreBounded(t *testing.T) {
	sets := map[string]uint64{}
	for i := range maxProbeSets + 5 {
		sets[fmt.Sprintf("p-%d.shop", i)] = uint64(1e6 - i)
	}
	got := probeSetsOf(t, podFakes(t, sets, ""), &adminv1.ListDataplanesRequest{ProbeSets: true})
	if len(got) != maxProbeSets || got[0].GetId() != 1e6-maxProbeSets-4 {
		t.Errorf("%d sets from %d", len(got), got[0].GetId())
	}
	bytes := 0
	for _, set := range probeSetsOf(t, podFakes(t, sets, strings.Repeat("a", 10_000)), &adminv1.ListDataplanesRequest{ProbeSets: true}) {
		bytes += proto.Size(set)
	}
	if bytes > maxProbeSetBytes || bytes < maxProbeSetBytes*9/10 {
		t.Errorf("the sets have %d bytes, want at most %d", bytes, maxProbeSetBytes)
	}
}
