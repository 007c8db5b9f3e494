package lists

import (
	"context"
	"encoding/json"
	"net/netip"
	"testing"
	"time"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
	"github.com/sonde-mesh/sonde/meshview/since"
)

// fakes replaces the stages whose state Answers shows.
type fakes struct {
	Answers
	of fakeAgents
}

func newFakes(t *testing.T) *fakes {
	t.Helper()
	f, view := &fakes{}, testView()
	f.Answers = Answers{
		View:      func() *meshview.View { return view },
		Problems:  func() []*adminv1.Problem { return nil },
		Streams:   func(context.Context) (map[mesh.ID][]*adminv1.Stream, []string) { return nil, nil },
		Missing:   func() []string { return nil },
		Agents:    &f.of,
		Since:     since.New(),
		CAExpires: func(string) time.Time { return time.Unix(2e9, 0) },
	}
	return f
}

// fakeAgents are Agents without reports, unless a test sets them.
type fakeAgents struct {
	agents              map[mesh.ID]*adminv1.Agent
	states              map[mesh.ID]*adminv1.AgentState
	notServing, refused map[mesh.ID]map[netip.AddrPort]string
	verdicts            map[mesh.ID]*adminv1.Verdicts
	unresponsive        func(meshName string) (map[mesh.ID]bool, []string)
}

func (f *fakeAgents) Agents() map[mesh.ID]*adminv1.Agent                    { return f.agents }
func (f *fakeAgents) States() map[mesh.ID]*adminv1.AgentState               { return f.states }
func (f *fakeAgents) Verdicts(id mesh.ID) *adminv1.Verdicts                 { return f.verdicts[id] }
func (f *fakeAgents) NotServing(id mesh.ID) map[netip.AddrPort]string       { return f.notServing[id] }
func (f *fakeAgents) RefusedListeners(id mesh.ID) map[netip.AddrPort]string { return f.refused[id] }
func (f *fakeAgents) Unresponsive(_ context.Context, meshName string) (map[mesh.ID]bool, []string) {
	return f.unresponsive(meshName)
}

// testView has web-1 and web-2 in mesh default, and another web-1 in mesh other.
func testView() *meshview.View {
	v := &meshview.View{Generation: 1, Meshes: map[string]*meshview.Mesh{}}
	for _, id := range []mesh.ID{"default/web-1", "default/web-2", "other/web-1"} {
		meshName, name := mesh.SplitID(id)
		if v.Meshes[meshName] == nil {
			spec := &mesh.Mesh{Name: meshName}
			spec.SetDefaults()
			v.Meshes[meshName] = &meshview.Mesh{Spec: spec}
		}
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: meshName, Name: name}}
		d.Spec.Networking.Address = "10.0.0.1"
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "web"}}}
		d.SetDefaults()
		switch meshName + "/" + name {
		case "default/web-1":
			d.Drain = &mesh.Drain{Node: "node a goes", ServesOn: "there is no other"}
		case "other/web-1":
			d.Drain = &mesh.Drain{Node: "node a goes"}
		}
		m := v.Meshes[meshName]
		m.Proxies = m.Proxies.With(name, &meshview.Proxy{
			Dataplane: d, Observed: mesh.Observation{Draining: name == "web-2"},
		})
	}
	m := v.Meshes["default"]
	m.Services = m.Services.With("web", &meshview.Service{
		Mesh: "default", Name: "web", Protocol: mesh.ProtocolHTTP,
		Addresses:  []netip.AddrPort{netip.MustParseAddrPort("240.0.0.1:80")},
		Identities: []string{"spiffe://default.sonde.internal/workload/web"},
		Endpoints: []meshview.Endpoint{
			{Address: netip.MustParseAddrPort("10.0.0.1:80"), Health: meshview.Ready, Sidecar: true},
			{Address: netip.MustParseAddrPort("10.0.0.2:80"), Health: meshview.Draining, Sidecar: true},
			{Address: netip.MustParseAddrPort("10.0.0.3:80"), Health: meshview.NotReady},
		},
	})
	return v
}

func decode(t *testing.T, body []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(body, into); err != nil {
		t.Fatal(err)
	}
}
