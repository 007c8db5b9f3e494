package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

func TestProbesOfTheControlPlane(t *testing.T) {
	t.Parallel()
	application := listen(t).Addr().String()
	free := must.FreeAddresses(t, 2)
	at, web := free[0], free[1]
	cp := newControlPlane(t, bootstrap(t, ports{}), "per-port-probes")
	send := func(address string) {
		cp.SendProbes(&agentv1.Probes{Http: web, Ports: []*agentv1.ProbePort{{Address: address, Application: application}}})
	}
	cp.Start()
	p := start(t, cp, nil)
	waitPort(t, at, false)
	send(at)
	waitPort(t, at, true)
	p.waitReady()

	send("localhost:1")
	p.waitLogged(`ports[0].address: \"localhost:1\": must be ip:port`)
	waitPort(t, at, true)

	send(application) // the application has the request
	wait.Until(t, "", func() error {
		if code, body := p.get("/readyz"); code == http.StatusOK || !strings.Contains(body, "address already in use") {
			return fmt.Errorf("/readyz = %d %q", code, body)
		}
		return nil
	})
	send(at)
	p.waitReady()
	waitPort(t, at, true)

	cp.Stop()
	p.waitLogged("session with the control plane ended")
	waitPort(t, at, true)
	cp.Set(func(s *controlplanetest.State) { s.Features = nil }) // an older release configures no probes
	cp.Start()
	waitPort(t, at, false)
	p.waitReady()
}

// tcpProbe is a check of an application, five times a second.
func tcpProbe(inbound, application string) *agentv1.ServiceProbe {
	return &agentv1.ServiceProbe{
		Inbound: inbound, Application: application, Handler: &agentv1.ServiceProbe_TcpSocket{TcpSocket: &agentv1.ServiceProbe_TCPSocket{}},
		Period: durationpb.New(200 * time.Millisecond), Timeout: durationpb.New(time.Second), FailureThreshold: 2, SuccessThreshold: 1,
	}
}

func TestServiceProbes(t *testing.T) {
	t.Parallel()
	const inbound = "10.0.0.1:8080"
	application := listen(t)
	cp := newControlPlane(t, bootstrap(t, ports{}), "service-probes")
	// reports waits until the agent reports this state of the inbound.
	reports := func(ready bool, reason string) {
		t.Helper()
		m := cp.Expect(func(m *agentv1.AgentMessage) bool { return len(m.GetReadiness().GetInbounds()) > 0 })
		if got := m.GetReadiness().GetInbounds()[0]; got.GetInbound() != inbound || got.GetReady() != ready || !strings.Contains(got.GetReason(), reason) {
			t.Fatalf("reported is %v, want %s, ready %v, reason %q", got, inbound, ready, reason)
		}
	}
	cp.Start()
	p := start(t, cp, nil)
	if features := cp.ExpectHello().GetFeatures(); !slices.Contains(features, "service-probes") {
		t.Errorf("features of the agent are %q", features)
	}
	cp.SendServiceProbes(tcpProbe(inbound, application.Addr().String()))
	reports(true, "")
	cp.SendServiceProbes(tcpProbe(inbound, application.Addr().String())) // the agent answers a control plane that sends the probes again
	reports(true, "")
	must.Do(t, application.Close())
	reports(false, "connection refused")
	p.waitLogged("application not ready")

	cp.Restart() // a new session gets all reports again
	reports(false, "connection refused")
	if code, body := p.get("/metrics"); !strings.Contains(body, `sonde_service_probe_ready{inbound="10.0.0.1:8080"} 0`) ||
		!strings.Contains(body, `sonde_service_probe_total{inbound="10.0.0.1:8080",verdict="failure"}`) {
		t.Errorf("/metrics = %d, without the probe", code)
	}
	cp.Set(func(s *controlplanetest.State) { s.Features = nil })
	cp.Restart() // an older control plane ends the probes
	wait.Until(t, "", func() error {
		if _, body := p.get("/metrics"); strings.Contains(body, "sonde_service_probe_ready{") {
			return errors.New("the agent still probes")
		}
		return nil
	})
	if _, body := p.get("/livez?verbose"); !strings.Contains(body, "[+]service-probes ok") || !strings.Contains(body, "[+]loop-service-probes ok") {
		t.Errorf("/livez = %s", body)
	}
}

// TestProbesCommand runs sonde-dp probes, which has no Envoy.
func TestProbesCommand(t *testing.T) {
	t.Parallel()
	const table = `[{"id":"a","container":"app","type":"liveness","httpGet":{"port":8080}}]`
	run := func(t *testing.T, table, at string) *program {
		t.Helper()
		ip, port, err := net.SplitHostPort(at)
		must.Do(t, err)
		p := &program{t: t, admin: at, cmd: exec.CommandContext(t.Context(), sondeDP, "probes", "--virtual-probes-port="+port)}
		p.cmd.Env = append(os.Environ(), mesh.EnvProbeTable+"="+table, mesh.EnvInstanceIP+"="+ip)
		p.run()
		return p
	}
	taken := listen(t).Addr().String()
	for name, tc := range map[string]struct {
		at   string
		says []string
	}{
		"port in use":   {taken, []string{"--virtual-probes-port", "address already in use"}},
		"other address": {"192.0.2.1:9000", []string{"INSTANCE_IP: \"192.0.2.1\"", "192.0.2.1:9000", "cannot assign"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := run(t, table, tc.at)
			<-p.ended
			for _, text := range tc.says {
				if log := p.logs.String(); p.cmd.ProcessState.ExitCode() != 1 || !strings.Contains(log, text) {
					t.Errorf("exit code %d, %q, want 1 and %q", p.cmd.ProcessState.ExitCode(), log, text)
				}
			}
		})
	}
	for _, table := range []string{"", "[]"} {
		t.Run("table "+table, func(t *testing.T) {
			p := run(t, table, must.FreeAddresses(t, 1)[0])
			wait.Until(t, "", func() error {
				if code, body := p.get("/8080/"); code != http.StatusNotFound {
					return fmt.Errorf("%d %s", code, body)
				}
				return nil
			})
			p.signal(syscall.SIGTERM)
			<-p.ended
			if code := p.cmd.ProcessState.ExitCode(); code != 0 {
				t.Errorf("exit code = %d, want 0", code)
			}
		})
	}
}
