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
