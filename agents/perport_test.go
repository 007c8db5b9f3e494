package agents_test

import (
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/testing/protocmp"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
)

// wantProbes waits for a Probes message, and checks the probes that the agent takes part in.
func (a *agent) wantProbes(want *agentv1.Probes) {
	a.h.t.Helper()
	got := next(a, "the probes", a.probes)
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		a.h.t.Fatalf("probes (-want +got):\n%s", diff)
	}
}

// probed returns a Dataplane with every kind of probe, changed by change.
func probed(change func(*mesh.Dataplane)) *mesh.Dataplane {
	d := dataplane("default", "web-1", "web")
	d.Spec.Networking.Inbound[0].ServicePort = 18080
	d.Labels = map[string]string{mesh.AnnotationVirtualProbesMode: string(mesh.ProbesPerPort)}
	d.Spec.Probes = &mesh.Probes{Port: 19000, Endpoints: []mesh.ProbeEndpoint{{InboundPort: 8080, InboundPath: "/metrics", Path: "/8080/metrics"}}}
	d.Spec.TCPProbes = []mesh.TCPProbe{
		{Port: 2379},
		{Port: 3476, InboundPort: 8080, Protocol: mesh.ProtocolTCP},
		{Port: 4000, Protocol: mesh.ProtocolGRPC},
	}
	change(d)
	return d
}

func same(*mesh.Dataplane) {}

var allProbes = &agentv1.Probes{
	Http:  "10.0.0.1:19000",
	Paths: []*agentv1.ProbePath{{Path: "/8080/metrics", Asked: "10.0.0.1:8080", Application: "127.0.0.1:18080", ApplicationPath: "/metrics"}},
	Ports: []*agentv1.ProbePort{
		{Address: "10.0.0.1:2379", Application: "127.0.0.1:2379", Grpc: true, Asked: "10.0.0.1:2379"},
		{Address: "10.0.0.1:3476", Application: "127.0.0.1:18080"},
		{Address: "10.0.0.1:4000", Application: "127.0.0.1:4000", Grpc: true, AlwaysOpen: true, Asked: "10.0.0.1:4000"},
	},
}

func TestProbesOfAWrittenDataplane(t *testing.T) {
	tests := map[string]struct {
		change func(*mesh.Dataplane)
		want   *agentv1.Probes
	}{
		"per-port by the label": {same, allProbes},
		"per-port by the flag": {func(d *mesh.Dataplane) {
			d.Labels, d.ProbesMode = nil, mesh.ProbesPerPort
		}, allProbes},
		"unified": {func(d *mesh.Dataplane) { d.Labels = nil }, &agentv1.Probes{}},
		"unified by the label": {func(d *mesh.Dataplane) {
			d.Labels[mesh.AnnotationVirtualProbesMode], d.ProbesMode = string(mesh.ProbesUnified), mesh.ProbesPerPort
		}, &agentv1.Probes{}},
		"no fields":    {func(d *mesh.Dataplane) { d.Spec.Probes, d.Spec.TCPProbes = nil, nil }, &agentv1.Probes{}},
		"no endpoints": {func(d *mesh.Dataplane) { d.Spec.Probes.Endpoints, d.Spec.TCPProbes = nil, nil }, &agentv1.Probes{}},
		"IPv6 and redirection": {func(d *mesh.Dataplane) {
			d.Spec.Networking.Address, d.Spec.Networking.Inbound[0].ServicePort = "fd00::1", 0
			d.Spec.Networking.TransparentProxying = &mesh.TransparentProxying{RedirectPortInbound: 15006, RedirectPortOutbound: 15001}
			d.Spec.TCPProbes = []mesh.TCPProbe{{Port: 3476, InboundPort: 8080}}
		}, &agentv1.Probes{
			Http:  "[fd00::1]:19000",
			Paths: []*agentv1.ProbePath{{Path: "/8080/metrics", Asked: "[fd00::1]:8080", Application: "[fd00::1]:8080", ApplicationPath: "/metrics"}},
			Ports: []*agentv1.ProbePort{{Address: "[fd00::1]:3476", Application: "[fd00::1]:8080", Grpc: true, Asked: "[fd00::1]:8080"}},
		}},
	}
	for name, tc := range tests {
		virtual.Run(t, name, func(t *testing.T) {
			h := newHarness(t, nil)
			h.put(probed(tc.change))
			h.synced()
			a := h.joined("web-1")
			a.wantProbes(tc.want)
		})
	}
}

func TestProbesFollowTheDataplane(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, a := joined(t, nil)
		a.connect(false)
		a.wantProbes(&agentv1.Probes{})
		h.put(probed(same))
		a.wantProbes(allProbes)
		h.put(probed(func(d *mesh.Dataplane) { d.Spec.Networking.Inbound[0].ServicePort = 28080 }))
		moved := proto.CloneOf(allProbes)
		moved.Paths[0].Application, moved.Ports[1].Application = "127.0.0.1:28080", "127.0.0.1:28080"
		a.wantProbes(moved)
		h.put(probed(func(d *mesh.Dataplane) { d.Labels = nil }))
		a.wantProbes(&agentv1.Probes{})
		h.put(probed(same))
		a.wantProbes(allProbes)
		h.put(dataplane("default", "web-1", "web"))
		a.wantProbes(&agentv1.Probes{})

		a.leave()
		a.connect(true) // the agent's earlier state may be outdated
		a.wantProbes(&agentv1.Probes{})
		if m := a.receive(); m.GetDrainRecorded() == nil {
			t.Fatalf("got %v, want DrainRecorded", m)
		}
		if len(a.probes) > 0 {
			t.Errorf("sent twice: %v", <-a.probes)
		}
	})
}

// TestAgentTooOldForPerPortProbes connects an agent that waits for listeners of Envoy.
func TestAgentTooOldForPerPortProbes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const warning = "agent is too old for per-port probes"
		for _, old := range []bool{true, false} {
			h, a := joined(t, nil)
			if !old {
				a.features = append(a.features, "probe-ports")
			}
			a.connect(false)
			a.wantProbes(&agentv1.Probes{})
			h.put(probed(same))
			a.wantProbes(allProbes)
			h.put(probed(func(d *mesh.Dataplane) { d.Spec.TCPProbes = nil }))
			a.wantProbes(&agentv1.Probes{Http: allProbes.GetHttp(), Paths: allProbes.GetPaths()})
			lines := h.log.Lines("level=WARN", warning)
			if old && len(lines) != 1 || !old && len(lines) > 0 {
				t.Errorf("old agent: %t, logged %q", old, lines)
			}
		}
	})
}

func TestProbesOfAPodAreInItsTable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newPodHarness(t, podTokens{"1": db0("1")})
		d := probed(same)
		d.Name, d.Identity = "db-0.shop", mesh.Identity{Path: "/ns/shop/sa/db", Instance: "1"}
		h.put(d)
		a := h.pod("1")
		a.mustJoin()
		a.connect(true)
		if m := a.receive(); m.GetDrainRecorded() == nil {
			t.Fatalf("got %v, want DrainRecorded", m)
		}
		a.report()
		if len(a.probes) > 0 {
			t.Errorf("sent %v", <-a.probes)
		}
	})
}
