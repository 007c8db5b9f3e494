package lists

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// countingAgents counts how often states are determined.
type countingAgents struct {
	*fakeAgents
	states int
}

func (a *countingAgents) States() map[mesh.ID]*adminv1.AgentState {
	a.states++
	return map[mesh.ID]*adminv1.AgentState{"default/web-1": {Phase: adminv1.AgentState_LOST}}
}

// One reading answers as the calls do, and needs less for it. It encodes objects again that are others.
func TestOnce(t *testing.T) {
	f := newFakes(t)
	agents, streams := &countingAgents{fakeAgents: &f.of}, 0
	f.Agents = agents
	f.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
		streams++
		return map[mesh.ID][]*adminv1.Stream{"default/web-2": {{Delta: true}}}, []string{"b"}
	}
	view := f.View()
	f.View = func() *meshview.View { return view }
	read := func(a *Answers) (all []any) {
		t.Helper()
		meshes, err1 := a.ListMeshes(t.Context(), &adminv1.ListMeshesRequest{})
		dataplanes, err2 := a.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{})
		services, err3 := a.ListServices(t.Context(), &adminv1.ListServicesRequest{})
		proxies, err4 := a.ListProxies(t.Context(), &adminv1.ListProxiesRequest{Verdicts: true})
		for _, err := range []error{err1, err2, err3, err4} {
			if err != nil {
				t.Fatal(err)
			}
		}
		return []any{meshes, dataplanes, services, proxies}
	}
	same := func(what string, once *Answers) {
		t.Helper()
		want := read(&f.Answers)
		agents.states, streams = 0, 0
		if diff := cmp.Diff(want, read(once), protocmp.Transform()); diff != "" {
			t.Errorf("%s (-calls +once):\n%s", what, diff)
		}
		if agents.states != 1 || streams != 1 {
			t.Errorf("%s: states were determined %d times, streams %d times", what, agents.states, streams)
		}
	}
	first := f.Once(nil)
	same("the first", first)
	second := f.Once(first)
	same("the second", second)
	p := view.Meshes["default"].Proxies.Get("web-1")
	d := *p.Dataplane
	d.Spec.Networking.Address = "10.0.0.9"
	view.Meshes["default"].Proxies = view.Meshes["default"].Proxies.With("web-1", &meshview.Proxy{Dataplane: &d, Observed: p.Observed})
	third := f.Once(second)
	same("another Dataplane", third)
	if n := len(third.encoded.now); n != 3 || third.encoded.now[p.Dataplane] != nil {
		t.Errorf("%d objects are kept, with the one that is gone", n)
	}
}

// The wait for other replicas is measured, since it is no work.
func TestOnceMeasuresTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFakes(t)
		f.Streams = func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) {
			time.Sleep(3 * time.Second)
			return nil, []string{"b"}
		}
		once := f.Once(nil)
		if once.Waited() != 0 {
			t.Errorf("before a list: %s", once.Waited())
		}
		for range 2 {
			if _, err := once.ListMeshes(t.Context(), &adminv1.ListMeshesRequest{}); err != nil || once.Waited() != 3*time.Second {
				t.Errorf("waited %s, %v", once.Waited(), err)
			}
		}
	})
}
