package lists

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	"google.golang.org/protobuf/types/known/timestamppb"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/meshview"
)

// lostSince is when the agent of default/api-1 was lost.
var lostSince = timestamppb.New(time.Unix(1e9, 0))

// newHealthFakes serves a view in which api-1 is ready and lost, api-2 has another workload, api-3 has never joined,
// the application of api-5 does not serve, a liveness probe of api-6 fails, and api-7 and api-8 have stopped, api-8
// after its application. default/early waits for its Dataplane.
func newHealthFakes(t *testing.T) *fakes {
	t.Helper()
	b := meshview.NewBuilder(meshview.Options{RequireJoin: true})
	for name, address := range map[string]string{"api-1": "10.0.0.1", "api-2": "10.0.0.2", "api-3": "10.0.0.3", "api-5": "10.0.0.5", "api-6": "10.0.0.6", "api-7": "10.0.0.7", "api-8": "10.0.0.8"} {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: name}}
		d.Spec.Networking.Address = address
		d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80, Tags: mesh.Tags{mesh.TagService: "api"}, ServiceProbe: &mesh.ServiceProbe{}}}
		d.SetDefaults()
		b.Set("test", d)
	}
	no := false
	s := &mesh.Service{Meta: mesh.Meta{Mesh: "default", Name: "api"}}
	s.Spec.Endpoints = []mesh.ServiceEndpoint{
		{Address: "10.0.0.4", Port: 80, Health: &mesh.EndpointHealth{Ready: &no}},
		{Address: "10.0.0.9", Port: 80, Health: &mesh.EndpointHealth{Ready: &no}, Restarting: true},
	}
	s.SetDefaults()
	b.Set("test", s)
	b.Observe("default/api-1", mesh.Observation{Joined: true, Path: "/workload/api"})
	b.Observe("default/api-2", mesh.Observation{Joined: true, Path: "/workload/web"})
	b.Observe("default/api-5", mesh.Observation{Joined: true, NotServing: "10.0.0.5:80"})
	b.Observe("default/api-6", mesh.Observation{Joined: true, Held: true})
	b.Observe("default/api-7", mesh.Observation{Joined: true, Draining: true})
	b.Observe("default/api-8", mesh.Observation{Joined: true, Draining: true, NotServing: "10.0.0.8:80"})
	change, _ := b.Build()

	f := newFakes(t)
	f.of.notServing = map[mesh.ID]map[netip.AddrPort]string{"default/api-5": {netip.MustParseAddrPort("10.0.0.5:80"): notServingText}}
	f.View = func() *meshview.View { return change.After }
	f.of.states = map[mesh.ID]*adminv1.AgentState{
		"default/api-1": {Phase: adminv1.AgentState_LOST, Since: lostSince},
		"default/api-2": {Phase: adminv1.AgentState_CONNECTED, Since: lostSince},
		"default/api-7": {Phase: adminv1.AgentState_STOPPED, Since: lostSince},
		"default/api-8": {Phase: adminv1.AgentState_STOPPED, Since: lostSince},
		"default/early": {Phase: adminv1.AgentState_WAITING, Refusal: "not known"},
	}
	return f
}

const (
	otherWorkloadText = `the certificate is for workload "web", the Dataplane has workload "api"`
	neverJoinedText   = "its proxy has never joined"
	heldText          = "its liveness probe fails, and the restart is held back until it is granted"
	notServingText    = "application probe failed: HTTP probe failed with statuscode: 500"
)

func TestListServicesSaysWhyEndpointsAreNotReady(t *testing.T) {
	f := newHealthFakes(t)
	got, err := f.ListServices(t.Context(), &adminv1.ListServicesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*adminv1.Endpoint{
		{Address: "10.0.0.1:80", Health: adminv1.Endpoint_READY, Sidecar: true, GetsTraffic: true, Dataplane: "api-1", AgentLostSince: lostSince},
		{Address: "10.0.0.2:80", Health: adminv1.Endpoint_NOT_READY, Sidecar: true, Dataplane: "api-2", Reason: otherWorkloadText},
		{Address: "10.0.0.3:80", Health: adminv1.Endpoint_NOT_READY, Sidecar: true, Dataplane: "api-3", Reason: neverJoinedText},
		{Address: "10.0.0.4:80", Health: adminv1.Endpoint_NOT_READY, Declared: true, Reason: "health.ready is false"},
		{Address: "10.0.0.5:80", Health: adminv1.Endpoint_NOT_READY, Sidecar: true, Dataplane: "api-5", Reason: notServingText},
		{Address: "10.0.0.6:80", Health: adminv1.Endpoint_DRAINING, Sidecar: true, Dataplane: "api-6", Reason: heldText},
		{Address: "10.0.0.7:80", Health: adminv1.Endpoint_STOPPED, Sidecar: true, Dataplane: "api-7"},
		{Address: "10.0.0.8:80", Health: adminv1.Endpoint_STOPPED, Sidecar: true, Dataplane: "api-8"},
		{Address: "10.0.0.9:80", Health: adminv1.Endpoint_NOT_READY, Declared: true, Reason: mesh.RestartingReason},
	}
	if diff := cmp.Diff(want, got.GetServices()[0].GetEndpoints(), protocmp.Transform()); diff != "" {
		t.Errorf("ListServices() (-want +got):\n%s", diff)
	}
}

// health.ready and the state of an inbound are two fields. The reason says which of the two makes it not ready.
func TestReasonNamesTheStateOfAnInbound(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{})
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "api-1"}}
	d.Spec.Networking.Address = "10.0.0.1"
	for i, state := range mesh.InboundStates() {
		d.Spec.Networking.Inbound = append(d.Spec.Networking.Inbound, mesh.Inbound{Port: uint32(80 + i), State: state})
	}
	d.SetDefaults()
	b.Set("test", d)
	change, _ := b.Build()
	f := newFakes(t)
	f.View = func() *meshview.View { return change.After }
	got, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*adminv1.InboundHealth{
		{Health: adminv1.Endpoint_READY, Unchecked: true},
		{Health: adminv1.Endpoint_NOT_READY, Reason: "its state is NotReady"},
		{Health: adminv1.Endpoint_NOT_READY, Reason: "its state is Ignored, so it has no listener"},
	}
	if diff := cmp.Diff(want, got.GetDataplanes()[0].GetInbounds(), protocmp.Transform()); diff != "" {
		t.Errorf("inbounds (-want +got):\n%s", diff)
	}
}

// Envoy lacks the listeners of two inbounds, and has rejected one of them.
func TestReasonHasTheRefusalOfAListener(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{})
	d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: "api-1"}}
	d.Spec.Networking.Address = "10.0.0.1"
	d.Spec.Networking.Inbound = []mesh.Inbound{{Port: 80}, {Port: 81}}
	d.SetDefaults()
	b.Set("test", d)
	b.Observe(d.ID(), mesh.Observation{Joined: true, ListenersKnown: true})
	change, _ := b.Build()
	f := newFakes(t)
	f.View = func() *meshview.View { return change.After }
	f.of.refused = map[mesh.ID]map[netip.AddrPort]string{"default/api-1": {netip.MustParseAddrPort("10.0.0.1:81"): "cannot bind"}}
	got, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := []*adminv1.InboundHealth{
		{Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy has not accepted the listener yet"},
		{Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy refuses the listener: cannot bind"},
	}
	if diff := cmp.Diff(want, got.GetDataplanes()[0].GetInbounds(), protocmp.Transform()); diff != "" {
		t.Errorf("inbounds (-want +got):\n%s", diff)
	}
}

func TestListDataplanesSaysWhyInboundsAreNotReady(t *testing.T) {
	f := newHealthFakes(t)
	got, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	api := []string{"api"}
	want := []*adminv1.InboundHealth{
		{Health: adminv1.Endpoint_READY, Services: api},
		{Health: adminv1.Endpoint_NOT_READY, Reason: otherWorkloadText, Services: api},
		{Health: adminv1.Endpoint_NOT_READY, Reason: neverJoinedText, Services: api},
		{Health: adminv1.Endpoint_NOT_READY, Reason: notServingText, Services: api},
		{Health: adminv1.Endpoint_DRAINING, Reason: heldText, Services: api},
		{Health: adminv1.Endpoint_STOPPED, Services: api},
		{Health: adminv1.Endpoint_STOPPED, Services: api},
	}
	for i, d := range got.GetDataplanes() {
		if has := i >= 5; d.GetStopped() != has || d.GetDraining() {
			t.Errorf("Dataplane %d: stopped is %t, draining is %t", i, d.GetStopped(), d.GetDraining())
		}
		if diff := cmp.Diff(want[i:i+1], d.GetInbounds(), protocmp.Transform()); diff != "" {
			t.Errorf("Dataplane %d (-want +got):\n%s", i, diff)
		}
	}
}

func TestListProxiesTellsOfAgents(t *testing.T) {
	f := newHealthFakes(t)
	got, err := f.ListProxies(t.Context(), &adminv1.ListProxiesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	states := f.of.states
	want := []*adminv1.Proxy{
		{Mesh: "default", Name: "api-1", Known: true, AgentState: states["default/api-1"]},
		{Mesh: "default", Name: "api-2", Known: true, AgentState: states["default/api-2"], OtherWorkload: otherWorkloadText},
		{Mesh: "default", Name: "api-3", Known: true},
		{Mesh: "default", Name: "api-5", Known: true},
		{Mesh: "default", Name: "api-6", Known: true},
		{Mesh: "default", Name: "api-7", Known: true, AgentState: states["default/api-7"]},
		{Mesh: "default", Name: "api-8", Known: true, AgentState: states["default/api-8"]},
		{Mesh: "default", Name: "early", AgentState: states["default/early"]},
	}
	if diff := cmp.Diff(want, got.GetProxies(), protocmp.Transform()); diff != "" {
		t.Errorf("ListProxies() (-want +got):\n%s", diff)
	}
}

// TestOutboundsSayWhyEnvoyDoesNotListen has a caller with another program at the address of one of its two outbounds,
// and a caller that has never joined.
func TestOutboundsSayWhyEnvoyDoesNotListen(t *testing.T) {
	b := meshview.NewBuilder(meshview.Options{RequireJoin: true})
	put := func(name string, outbounds ...mesh.Outbound) {
		d := &mesh.Dataplane{Meta: mesh.Meta{Mesh: "default", Name: name}}
		d.Spec.Networking.Address, d.Spec.Networking.Outbound = "10.0.0.1", outbounds
		if outbounds == nil {
			d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{}
		}
		d.SetDefaults()
		b.Set("test", d)
	}
	api := mesh.Outbound{Port: 10001, Tags: mesh.Tags{mesh.TagService: "api"}}
	put("early-1", api)
	put("redirected-1")
	put("web-1", api, mesh.Outbound{Port: 10002, Tags: mesh.Tags{mesh.TagService: "db"}}, mesh.Outbound{Port: 10003, Tags: mesh.Tags{mesh.TagService: "new"}})
	b.Observe("default/redirected-1", mesh.Observation{Joined: true, ListenersKnown: true, OutboundsKnown: true, Outbounds: "0.0.0.0:15001"})
	b.Observe("default/web-1", mesh.Observation{Joined: true, ListenersKnown: true, OutboundsKnown: true, Outbounds: "127.0.0.1:10001"})
	change, _ := b.Build()
	f := newFakes(t)
	f.View = func() *meshview.View { return change.After }
	f.of.states = map[mesh.ID]*adminv1.AgentState{"default/early-1": {Phase: adminv1.AgentState_NEVER_JOINED}}
	f.of.refused = map[mesh.ID]map[netip.AddrPort]string{"default/web-1": {netip.MustParseAddrPort("127.0.0.1:10002"): "cannot bind"}}
	got, err := f.ListDataplanes(t.Context(), &adminv1.ListDataplanesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	want := [][]*adminv1.OutboundHealth{
		{{Address: "127.0.0.1:10001", Service: "api", Health: adminv1.Endpoint_NOT_READY, Reason: neverJoinedText}},
		{{Address: "0.0.0.0:15001", Health: adminv1.Endpoint_READY}},
		{
			{Address: "127.0.0.1:10001", Service: "api", Health: adminv1.Endpoint_READY},
			{Address: "127.0.0.1:10002", Service: "db", Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy refuses the listener: cannot bind"},
			{Address: "127.0.0.1:10003", Service: "new", Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy has not accepted the listener yet"},
		},
	}
	for i, d := range got.GetDataplanes() {
		if diff := cmp.Diff(want[i], d.GetOutbounds(), protocmp.Transform()); diff != "" {
			t.Errorf("outbounds of Dataplane %d (-want +got):\n%s", i, diff)
		}
	}
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
