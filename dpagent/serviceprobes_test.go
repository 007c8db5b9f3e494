package dpagent_test

import (
	"fmt"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
)

// tcpProbe is the check of an application on 127.0.0.1, five times a second, changed by changes.
func tcpProbe(inbound string, port int, changes ...func(*agentv1.ServiceProbe)) *agentv1.ControlMessage {
	p := &agentv1.ServiceProbe{
		Inbound: inbound, Application: fmt.Sprint("127.0.0.1:", port), Handler: &agentv1.ServiceProbe_TcpSocket{TcpSocket: &agentv1.ServiceProbe_TCPSocket{}},
		Period: durationpb.New(200 * time.Millisecond), Timeout: durationpb.New(time.Second), FailureThreshold: 2, SuccessThreshold: 1,
	}
	for _, change := range changes {
		change(p)
	}
	return &agentv1.ControlMessage{Message: &agentv1.ControlMessage_ServiceProbes{ServiceProbes: &agentv1.ServiceProbes{Probes: []*agentv1.ServiceProbe{p}}}}
}

// reports waits until the agent says this of an inbound.
func (cp *controlPlane) reports(inbound string, ready bool, reason string) {
	cp.t.Helper()
	m := cp.expect(func(m *agentv1.AgentMessage) bool { return len(m.GetReadiness().GetInbounds()) > 0 })
	got := m.GetReadiness().GetInbounds()[0]
	if got.GetInbound() != inbound || got.GetReady() != ready || !strings.Contains(got.GetReason(), reason) {
		cp.t.Fatalf("reported is %v, want %s, ready %v, reason %q", got, inbound, ready, reason)
	}
}

func TestServiceProbes(t *testing.T) {
	t.Parallel()
	const inbound = "10.0.0.1:8080"
	application, err := net.Listen("tcp", "127.0.0.1:0") // its backlog is enough for all connections
	if err != nil {
		t.Fatal(err)
	}
	port := application.Addr().(*net.TCPAddr).Port
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.features = []string{"service-probes"}
	cp.start()
	r := startAgent(t, options(t, cp))
	hello := cp.expect(func(m *agentv1.AgentMessage) bool { return m.GetHello() != nil }).GetHello()
	if features := hello.GetFeatures(); !slices.Contains(features, "service-probes") {
		t.Errorf("features of the agent are %q", features)
	}
	cp.send <- tcpProbe(inbound, port)
	cp.reports(inbound, true, "")

	cp.send <- tcpProbe(inbound, port) // a control plane that asks again is answered
	cp.reports(inbound, true, "")

	if err := application.Close(); err != nil {
		t.Fatal(err)
	}
	cp.reports(inbound, false, "connection refused")
	r.logged("application not ready")

	cp.stop() // a new session is told all anew
	cp.start()
	cp.reports(inbound, false, "connection refused")
	if code, body := r.get("/metrics"); !strings.Contains(body, `sonde_service_probe_ready{inbound="10.0.0.1:8080"} 0`) ||
		!strings.Contains(body, `sonde_service_probe_total{inbound="10.0.0.1:8080",verdict="failure"}`) {
		t.Errorf("/metrics = %d, without the probe", code)
	}

	cp.stop() // and one that is too old has the probes ended
	cp.set(func() { cp.features = nil })
	cp.start()
	eventually(t, 30*time.Second, func() string {
		if _, body := r.get("/metrics"); strings.Contains(body, "sonde_service_probe_ready{") {
			return "the probe goes on"
		}
		return ""
	})
	if _, body := r.get("/livez?verbose"); !strings.Contains(body, "[+]service-probes ok") || !strings.Contains(body, "[+]loop-service-probes ok") {
		t.Errorf("/livez = %s", body)
	}
}

func TestServiceProbesThatAreWrong(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		change func(*agentv1.ServiceProbe)
		want   string
	}{
		"inbound":     {func(p *agentv1.ServiceProbe) { p.Inbound = "web" }, `probes[0].inbound: \"web\": must be ip:port`},
		"application": {func(p *agentv1.ServiceProbe) { p.Application = "localhost:80" }, `probes[0].application: \"localhost:80\": must be ip:port`},
		"period":      {func(p *agentv1.ServiceProbe) { p.Period = nil }, `probes[0].period: \"0s\": must be longer than 0`},
		"timeout":     {func(p *agentv1.ServiceProbe) { p.Timeout = durationpb.New(-1) }, `probes[0].timeout: \"-1ns\": must be longer than 0`},
		"failures":    {func(p *agentv1.ServiceProbe) { p.FailureThreshold = 0 }, `probes[0].failure_threshold: \"0\": must be at least 1`},
		"successes":   {func(p *agentv1.ServiceProbe) { p.SuccessThreshold = 0 }, `probes[0].success_threshold: \"0\": must be at least 1`},
		"no handler":  {func(p *agentv1.ServiceProbe) { p.Handler = nil }, `probes[0].handler: must be one that this agent knows`},
	}
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.features = []string{"service-probes"}
	cp.start()
	r := startAgent(t, options(t, cp))
	for name, tc := range tests {
		t.Run(name, func(*testing.T) {
			cp.send <- tcpProbe("10.0.0.1:8080", 1, tc.change)
			r.logged(tc.want)
		})
	}
}
