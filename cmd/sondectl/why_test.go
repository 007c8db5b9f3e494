package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"

	adminv1 "github.com/sonde-mesh/sonde/api/admin/v1"
)

// TestRefusalsOfAnEndpoint shows which of the resources that its Envoy refuses speak against an endpoint.
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

// TestHeldEndpoint shows that an endpoint which drains since a liveness probe fails is not that of a proxy that ends, unless it does.
func TestHeldEndpoint(t *testing.T) {
	const held = "its liveness probe fails"
	p := &adminv1.Proxy{AgentState: &adminv1.AgentState{Phase: adminv1.AgentState_CONNECTED}, Streams: []*adminv1.Stream{{}}}
	if diff := cmp.Diff([]string{held}, reasons(adminv1.Endpoint_DRAINING, held, "", p)); diff != "" {
		t.Errorf("reasons() (-want +got):\n%s", diff)
	}
	p.Draining = true
	if diff := cmp.Diff([]string{held, "draining: its agent, or its owner, has said that it ends"}, reasons(adminv1.Endpoint_DRAINING, held, "", p)); diff != "" {
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

func TestVersionIsNotSupported(t *testing.T) {
	p := &adminv1.Proxy{Agent: &adminv1.Agent{VersionSkew: "agent v0.1.0 is too old"}}
	if diff := cmp.Diff([]string{"unsupported: agent v0.1.0 is too old"}, proxyRow(p).Notes); diff != "" {
		t.Errorf("notes of the row (-want +got):\n%s", diff)
	}
}

// TestEnvoyDoesNotRun shows why, in both commands.
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
