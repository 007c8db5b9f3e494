package main

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
)

// TestRefusalsOfAnEndpoint shows which rejected resources are reasons against an endpoint.
func TestRefusalsOfAnEndpoint(t *testing.T) {
	nack := func(resource string) *adminv1.Nack { return &adminv1.Nack{Resource: resource, Reason: "no"} }
	p := &adminv1.Proxy{
		AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED},
		Streams: []*adminv1.Stream{{Types: []*adminv1.TypeStatus{{Kind: "listeners", Nacks: []*adminv1.Nack{
			nack("inbound:10.0.0.1:80"), nack("inbound:10.0.0.1:81"), nack("inbound:capture"), nack("outbound:127.0.0.1:10001"), nack(""),
		}}}}},
	}
	others := []string{"refused: listeners inbound:capture: no", "refused: listeners outbound:127.0.0.1:10001: no", "refused: listeners (Envoy does not say which): no"}
	for name, tc := range map[string]struct {
		reason, at string
		want       []string
	}{
		"its own listener":        {"", "10.0.0.1:80", append([]string{"refused: listeners inbound:10.0.0.1:80: no"}, others...)},
		"another inbound":         {"", "10.0.0.1:82", others},
		"it is the reason":        {"its Envoy refuses the listener: no", "10.0.0.1:80", []string{"its Envoy refuses the listener: no"}},
		"a proxy without inbound": {"", "", others},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, reasons(adminv1.Endpoint_READY, tc.reason, tc.at, p)); diff != "" {
				t.Errorf("reasons() (-want +got):\n%s", diff)
			}
		})
	}
}

// TestHeldEndpoint shows that an endpoint that drains because of a failed liveness probe does not make its proxy look
// as if it were stopping.
func TestHeldEndpoint(t *testing.T) {
	const held = "its liveness probe fails"
	p := &adminv1.Proxy{AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED}, Streams: []*adminv1.Stream{{}}}
	if diff := cmp.Diff([]string{held}, reasons(adminv1.Endpoint_DRAINING, held, "", p)); diff != "" {
		t.Errorf("reasons() (-want +got):\n%s", diff)
	}
	p.Draining = true
	if diff := cmp.Diff([]string{held, "draining: its agent or its owner has reported that it is stopping"}, reasons(adminv1.Endpoint_DRAINING, held, "", p)); diff != "" {
		t.Errorf("reasons() of one that ends (-want +got):\n%s", diff)
	}
	d := &adminv1.Dataplane{Inbounds: []*adminv1.InboundHealth{{Health: adminv1.Endpoint_DRAINING, Reason: held}}}
	if got := dataplaneHealth(d); got != "draining" {
		t.Errorf("the health of the Dataplane is %q", got)
	}
	e := &adminv1.Endpoint{Address: "10.0.0.1:80", Dataplane: "web-1", Health: adminv1.Endpoint_DRAINING, Reason: held}
	if got, want := endpointNote(e), "draining: 10.0.0.1:80 (web-1): "+held; got != want {
		t.Errorf("the note of the endpoint is %q, want %q", got, want)
	}
}

// held is a control plane with one service without ready endpoints.
type held struct {
	adminv1.AdminServiceClient
	bend func(*adminv1.Service)
}

func (h held) service() *adminv1.Service {
	s := &adminv1.Service{Mesh: "default", Name: "web"}
	for _, at := range []string{"10.0.0.1:80", "10.0.0.2:80"} {
		s.Endpoints = append(s.Endpoints, &adminv1.Endpoint{Address: at, Health: adminv1.Endpoint_DRAINING, Reason: "its liveness probe fails", GetsTraffic: true})
	}
	h.bend(s)
	return s
}

func (h held) ListServices(context.Context, *adminv1.ListServicesRequest, ...grpc.CallOption) (*adminv1.ListServicesResponse, error) {
	return &adminv1.ListServicesResponse{Services: []*adminv1.Service{h.service()}}, nil
}

func (held) ListMeshServices(context.Context, *adminv1.ListMeshServicesRequest, ...grpc.CallOption) (*adminv1.ListMeshServicesResponse, error) {
	return &adminv1.ListMeshServicesResponse{MeshServices: []*adminv1.MeshService{{
		Object: []byte(`{"mesh":"default","name":"front","spec":{"ports":[{"port":80}]}}`), Ports: []*adminv1.MeshServicePort{{Service: "front_msvc_80", Endpoints: 2, Serving: 2}},
	}}}, nil
}

func (held) ListDataplanes(context.Context, *adminv1.ListDataplanesRequest, ...grpc.CallOption) (*adminv1.ListDataplanesResponse, error) {
	return &adminv1.ListDataplanesResponse{Dataplanes: []*adminv1.Dataplane{{
		Object:   []byte(`{"mesh":"default","name":"web-1","spec":{"networking":{"address":"10.0.0.1","inbound":[{"port":80,"address":"10.0.0.1","tags":{"kuma.io/service":"web"}}]}}}`),
		Inbounds: []*adminv1.InboundHealth{{Health: adminv1.Endpoint_DRAINING, Services: []string{"web"}, Serves: []string{"web"}}},
	}}}, nil
}

func (held) ListProxies(context.Context, *adminv1.ListProxiesRequest, ...grpc.CallOption) (*adminv1.ListProxiesResponse, error) {
	return &adminv1.ListProxiesResponse{}, nil
}

// TestAllAreHeldBack shows that draining endpoints get the traffic of a service without ready ones.
func TestAllAreHeldBack(t *testing.T) {
	const first, second = "draining: 10.0.0.1:80: its liveness probe fails", "draining: 10.0.0.2:80: its liveness probe fails"
	tests := map[string]struct {
		bend  func(*adminv1.Service)
		notes []string
		why   string // output of why for the first endpoint
	}{
		"all of them": {
			func(*adminv1.Service) {}, []string{"draining endpoints get traffic: no endpoint of service web is ready", first, second},
			"it still gets traffic: no endpoint of service web is ready",
		},
		"one is ready": {
			func(s *adminv1.Service) {
				s.Endpoints[0].GetsTraffic = false
				s.Endpoints[1] = &adminv1.Endpoint{Address: "10.0.0.2:80", Health: adminv1.Endpoint_READY, GetsTraffic: true}
			}, []string{first}, "",
		},
		"of a control plane that does not say it": {
			func(s *adminv1.Service) { s.Endpoints[0].GetsTraffic, s.Endpoints[1].GetsTraffic = false, false }, []string{first, second}, "",
		},
		"of a node": {
			func(s *adminv1.Service) { s.Local, s.Endpoints[1].GetsTraffic = true, false },
			[]string{"draining endpoints get traffic: no endpoint of service web on its node is ready", first, second},
			"it still gets traffic: no endpoint of service web on its node is ready",
		},
		"headless": {
			func(s *adminv1.Service) { s.Headless = true },
			[]string{"draining endpoints get traffic: callers of service web reach each endpoint at its own address", first, second},
			"it still gets traffic: callers of service web reach each endpoint at its own address",
		},
	}
	for name, tc := range tests {
		t.Run(name, func(t *testing.T) {
			api := held{bend: tc.bend}
			listed, err := services.list(t.Context(), api, &adminv1.Filter{})
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tc.notes, listed.rows[0].Notes); diff != "" {
				t.Errorf("notes of get services (-want +got):\n%s", diff)
			}
			found := (&subject{}).ofService("web", api.service())[0]
			want := []string{"its liveness probe fails"}
			if tc.why != "" {
				want = append(want, tc.why)
			}
			if diff := cmp.Diff(want, found.Reasons); diff != "" || found.Serves != (tc.why != "") {
				t.Errorf("serves: %t, reasons (-want +got):\n%s", found.Serves, diff)
			}
		})
	}
}

// TestHeldBackIsSaidOfOthers shows the same texts for MeshServices and Dataplanes.
func TestHeldBackIsSaidOfOthers(t *testing.T) {
	api := held{bend: func(*adminv1.Service) {}}
	meshServices, err := meshServices.list(t.Context(), api, &adminv1.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"draining endpoints get traffic: no endpoint of service front_msvc_80 is ready"}, meshServices.rows[0].Notes); diff != "" {
		t.Errorf("notes of get meshservices (-want +got):\n%s", diff)
	}
	dataplanes, err := dataplanes.list(t.Context(), api, &adminv1.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"draining: web:80/tcp: it still gets traffic, of service web"}, dataplanes.rows[0].Notes); diff != "" {
		t.Errorf("notes of get dataplanes (-want +got):\n%s", diff)
	}
	asked, err := askFor(t.Context(), api, &adminv1.Filter{Name: "web-1"})
	if err != nil {
		t.Fatal(err)
	}
	found, err := asked.ofDataplane(asked.dataplanes.GetDataplanes()[0])
	if err != nil || !found[0].Serves || !slices.Contains(found[0].Reasons, "it still gets traffic, of service web") {
		t.Errorf("ofDataplane() = %+v, %v", found, err)
	}
}

func TestVersionIsNotSupported(t *testing.T) {
	p := &adminv1.Proxy{Agent: &adminv1.Agent{VersionSkew: "agent v0.1.0 is too old"}}
	if diff := cmp.Diff([]string{"unsupported: agent v0.1.0 is too old"}, proxyRow(p).Notes); diff != "" {
		t.Errorf("notes of the row (-want +got):\n%s", diff)
	}
}

// TestEnvoyDoesNotRun checks that why and get proxies both say why Envoy does not run.
func TestEnvoyDoesNotRun(t *testing.T) {
	p := &adminv1.Proxy{
		Name: "web-1", Agent: &adminv1.Agent{EnvoyDown: "run envoy: exit status 1"},
		AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED},
	}
	if diff := cmp.Diff([]string{"its Envoy does not run: run envoy: exit status 1"}, reasons(adminv1.Endpoint_READY, "", "", p)); diff != "" {
		t.Errorf("reasons() (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]string{"envoy does not run: run envoy: exit status 1"}, proxyRow(p).Notes); diff != "" {
		t.Errorf("notes of the row (-want +got):\n%s", diff)
	}
}

// TestOutboundsOfADataplane shows the health of a Dataplane if another program uses the port of an outbound.
func TestOutboundsOfADataplane(t *testing.T) {
	ready, wrong := &adminv1.OutboundHealth{Health: adminv1.Endpoint_READY}, &adminv1.OutboundHealth{
		Address: "127.0.0.1:10001", Service: "api", Health: adminv1.Endpoint_NOT_READY, Reason: "its Envoy refuses the listener: cannot bind",
	}
	serves, fails := []*adminv1.InboundHealth{{Health: adminv1.Endpoint_READY}}, []*adminv1.InboundHealth{{Health: adminv1.Endpoint_NOT_READY}}
	for name, tc := range map[string]struct {
		d      *adminv1.Dataplane
		health string
	}{
		"a caller alone":              {&adminv1.Dataplane{Outbounds: []*adminv1.OutboundHealth{ready}}, "ready"},
		"a caller alone that cannot":  {&adminv1.Dataplane{Outbounds: []*adminv1.OutboundHealth{ready, wrong}}, "not-ready"},
		"it serves, and cannot call":  {&adminv1.Dataplane{Inbounds: serves, Outbounds: []*adminv1.OutboundHealth{wrong}}, "outbounds-not-ready"},
		"it can do neither":           {&adminv1.Dataplane{Inbounds: fails, Outbounds: []*adminv1.OutboundHealth{wrong}}, "not-ready"},
		"it drains":                   {&adminv1.Dataplane{Draining: true, Outbounds: []*adminv1.OutboundHealth{wrong}}, "draining"},
		"it serves, and it can call":  {&adminv1.Dataplane{Inbounds: serves, Outbounds: []*adminv1.OutboundHealth{ready}}, "ready"},
		"it has nothing":              {&adminv1.Dataplane{}, ""},
		"it has stopped for all that": {&adminv1.Dataplane{Stopped: true, Outbounds: []*adminv1.OutboundHealth{wrong}}, "stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			if got := dataplaneHealth(tc.d); got != tc.health {
				t.Errorf("health is %q, want %q", got, tc.health)
			}
		})
	}
	d := &adminv1.Dataplane{Object: []byte(`{"mesh": "default", "name": "web-1"}`), Outbounds: []*adminv1.OutboundHealth{ready, wrong}}
	notes := []string{"not ready: outbound 127.0.0.1:10001 (api): its Envoy refuses the listener: cannot bind"}
	if diff := cmp.Diff(notes, outboundNotes(d)); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	d.Outbounds = append(d.Outbounds, &adminv1.OutboundHealth{Address: "127.0.0.1:10002", Service: "db", Health: adminv1.Endpoint_READY},
		&adminv1.OutboundHealth{Address: "127.0.0.1:10003", Service: "wev", Health: adminv1.Endpoint_READY}, &adminv1.OutboundHealth{Address: "127.0.0.1:10004", Service: "web", Health: adminv1.Endpoint_READY})
	d.Outbounds[0].Address = "0.0.0.0:15001" // with redirection, one listener serves all services
	subject := &subject{called: map[mesh.ID]*adminv1.Service{
		"default/db":  {Name: "db", Endpoints: []*adminv1.Endpoint{{Health: adminv1.Endpoint_NOT_READY}}},
		"default/wev": {Name: "wev", Reasons: []string{"there is no such Service", "calls fail"}},
		"default/web": {Name: "web", Endpoints: []*adminv1.Endpoint{{Health: adminv1.Endpoint_READY, GetsTraffic: true}}},
	}}
	found, err := subject.ofDataplane(d)
	var lines []string
	for _, f := range found {
		lines = append(lines, strings.Join(append([]string{string(f.Kind), f.Mesh, strings.Join(f.Services, ","), f.Endpoint, f.Dataplane, f.State}, f.Reasons...), " "))
	}
	want := []string{
		"dataplane default  0.0.0.0:15001 web-1 outbound-ready all calls are redirected to it, for any service of the mesh",
		"dataplane default api 127.0.0.1:10001 web-1 outbound-not-ready its Envoy refuses the listener: cannot bind",
		"dataplane default db 127.0.0.1:10002 web-1 outbound-no-endpoints no endpoint of service db gets traffic: sondectl why service/db says why",
		"dataplane default wev 127.0.0.1:10003 web-1 outbound-no-endpoints there is no such Service",
		"dataplane default web 127.0.0.1:10004 web-1 outbound-ready",
	}
	if diff := cmp.Diff(want, lines); err != nil || diff != "" {
		t.Errorf("why says, error %v (-want +got):\n%s", err, diff)
	}
	if status := newDataplaneStatus(d).Outbounds; len(status) != 5 || status[1].Health != "NOT_READY" || status[1].Reason == "" {
		t.Errorf("status says of the outbounds %+v", status)
	}
}
