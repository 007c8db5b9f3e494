package agent

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

// TestGuardedAgentWithoutAPort occupies a port of the agent: the guard exits, and the container's last log lines show
// the reason.
func TestGuardedAgentWithoutAPort(t *testing.T) {
	t.Parallel()
	taken := listen(t).Addr().String()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	for name, value := range map[string]string{"--admin-addr": taken, "--metrics-addr": taken, "--lb-health-port": portOf(t, taken)} {
		t.Run(name, func(t *testing.T) {
			cmd, _ := command(t, cp, "--virtual-probes-port="+portOf(t, must.FreeAddresses(t, 1)[0]), name+"="+value)
			cmd.Env = append(os.Environ(), probeEnv(t, "1")...)
			said, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(said)), "\n")
			last := lines[len(lines)-1]
			if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasPrefix(last, "sonde-dp: "+name+": ") || !strings.HasSuffix(last, "address already in use") {
				t.Errorf("%v (exit code %d), it prints\n%s", err, code, said)
			}
		})
	}
}

// TestAgentDiesWithoutControlPlane kills an agent while no control plane runs: the next agent becomes ready without
// it, and supervises the Envoy as if it had started it.
func TestAgentDiesWithoutControlPlane(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.Start()
	p, _ := startGuarded(t, cp)
	before := p.envoys()
	cp.Stop()
	p.killWorker()
	p.waitAdopted(1)
	p.waitReady()
	if now := p.envoys(); !slices.Equal(now, before) {
		t.Errorf("Envoys = %v, want %v", now, before)
	}
	must.Do(t, syscall.Kill(before[0], syscall.SIGKILL))
	wait.Until(t, "", func() error {
		if n := len(p.envoys()); n != 2 { // the list includes ended processes
			return fmt.Errorf("Envoy was started %d times", n)
		}
		return nil
	})
}

// TestHeldPortsOutliveTheAgent kills an agent while no control plane runs: the next agent serves the ports that the
// control plane had configured, and checks the applications, even if Envoy has died, too.
func TestHeldPortsOutliveTheAgent(t *testing.T) {
	t.Parallel()
	for name, withEnvoy := range map[string]bool{"the agent": false, "the agent and Envoy": true} {
		t.Run(name, func(t *testing.T) {
			cp := newControlPlane(t, bootstrap(t, ports{}), "per-port-probes", "service-probes")
			cp.Start()
			p, _ := startGuarded(t, cp)
			behind := serve(t, http.NotFound)
			free := must.FreeAddresses(t, 2)
			held, web := free[0], free[1]
			cp.SendProbes(&agentv1.Probes{
				Http: web, Paths: []*agentv1.ProbePath{{Path: "/x", Asked: "127.0.0.1:80", Application: behind, ApplicationPath: "/"}},
				Ports: []*agentv1.ProbePort{{Address: held, Application: behind}},
			})
			const inbound = "127.0.0.3:80"
			cp.SendServiceProbes(tcpProbe(inbound, behind))
			waitPort(t, held, true)
			p.waitServed(web, inbound)

			cp.Stop()
			died := p.killWorker()
			if withEnvoy {
				_ = syscall.Kill(p.envoys()[0], syscall.SIGKILL) // before or after the next agent adopts it
			}
			waitGone(t, died)
			waitPort(t, held, true)
			p.waitServed(web, inbound)
			if withEnvoy {
				return
			}
			cp.Set(func(s *controlplanetest.State) { s.Features = nil }) // an older release names no ports
			cp.Start()
			waitPort(t, held, false)
			p.killWorker()
			p.waitAdopted(2)
			p.waitReady()
			waitPort(t, held, false)
		})
	}
}

// waitServed waits until the agent itself answers the path /x, which no application has, and checks the application
// behind an inbound.
func (p *program) waitServed(web, inbound string) {
	p.t.Helper()
	wait.Until(p.t, "", func() error {
		if code, body := ask(p.t, "http://"+web+"/x"); code != http.StatusNotFound || !strings.Contains(body, "statuscode: 404") {
			return fmt.Errorf("/x is answered %d %q", code, body)
		}
		if _, metrics := p.get("/metrics"); !strings.Contains(metrics, fmt.Sprintf("sonde_service_probe_ready{inbound=%q} 1", inbound)) {
			return errors.New("the application behind " + inbound + " is not asked")
		}
		return nil
	})
}

// probe checks once, as the kubelet does, and returns an error for a verdict against the
// application.
func probe(t testing.TB, url string) error {
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set(mesh.ProbeHeader, "live")
	answer, err := client().Do(request)
	if err != nil {
		return err
	}
	if err := answer.Body.Close(); err != nil || answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s: %w", answer.Status, err)
	}
	return nil
}

// TestAgentDiesAndComesBack shows that the death of an agent is no failure of the application, and that the next
// agent keeps the Envoy.
func TestAgentDiesAndComesBack(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.Start()
	p, url := startGuarded(t, cp)
	var failure atomic.Pointer[string]
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := probe(t, url); err != nil {
				text := err.Error()
				failure.Store(&text)
			}
		}
	}()
	const crashes = 3
	for crash := range crashes {
		p.killWorker()
		p.waitAdopted(crash + 1)
		p.waitReady()
		want := fmt.Sprintf("\nsonde_dpagent_worker_starts_total %d\n", crash+2)
		if _, body := p.get("/metrics"); !strings.Contains(body, want) {
			t.Errorf("/metrics has no %q after %d crashes", want, crash+1)
		}
	}
	envoys := p.envoys()
	if len(envoys) != 1 || gone(envoys[0]) == nil {
		t.Errorf("Envoys = %v, want one running Envoy", envoys)
	}
	close(stop)
	<-stopped
	if text := failure.Load(); text != nil {
		t.Errorf("the kubelet would blame the application: %s", *text)
	}
	p.signal(syscall.SIGTERM)
	<-p.ended
	for _, pid := range envoys {
		if err := gone(pid); err != nil {
			t.Error(err)
		}
	}
	if text := p.logs.String(); strings.Contains(text, "is not ready") || !strings.Contains(text, "drain") {
		t.Error("SIGTERM to the guard does not drain")
	}
}

// TestNothingOutlivesTheGuard ends the guard: worker and Envoy end with it. Envoy's environment has none of the
// guard's variables.
func TestNothingOutlivesTheGuard(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.Start()
	p, url := startGuarded(t, cp)
	envoys := p.envoys()
	for _, pid := range envoys {
		if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || strings.Contains(string(env), wire.Env+"=") {
			t.Errorf("the environment of Envoy is %q, %v: want no variable of the guard", env, err)
		}
	}
	pids := append(envoys, p.worker())
	must.Do(t, p.cmd.Process.Kill())
	<-p.ended
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", address)
	if err != nil {
		t.Fatalf("the virtual port is not free at once: %v", err)
	}
	_ = l.Close()
	waitGone(t, pids...)
}

// waitLB waits until a load balancer gets this response.
func waitLB(t testing.TB, port, path string, code int, reason string) {
	t.Helper()
	wait.Until(t, "", func() error {
		if got, body := ask(t, "http://127.0.0.1:"+port+path); got != code || !strings.Contains(body, reason) {
			return fmt.Errorf("%s = %d %s, want %d %s", path, got, body, code, reason)
		}
		return nil
	})
}

func TestLoadBalancerSeesTheSameAfterACrash(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}), "drain-state")
	cp.Start()
	port := portOf(t, must.FreeAddresses(t, 1)[0])
	p, _ := startGuarded(t, cp, "--lb-health-port="+port)
	waitLB(t, port, "/healthz", http.StatusOK, "")
	cp.SendDrainState(&agentv1.DrainState{Administrator: "node a: kernel"})
	waitLB(t, port, "/healthz", http.StatusServiceUnavailable, "administrator")
	p.waitLogged("drain state") // the agent has stored the drain
	cp.Stop()
	p.killWorker()
	p.waitAdopted(1)
	p.waitReady()
	for range 20 {
		if code, body := ask(t, "http://127.0.0.1:"+port+"/healthz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "administrator") {
			t.Errorf("in the next worker, without a control plane: /healthz = %d %s", code, body)
		}
	}
	cp.Start()
	cp.ExpectHello()
	cp.SendDrainState(&agentv1.DrainState{})
	waitLB(t, port, "/healthz", http.StatusOK, "")
	p.waitLogged(`"draining":false`) // the agent has stored the end of the drain
	p.killWorker()
	p.waitAdopted(2)
	waitLB(t, port, "/healthz", http.StatusOK, "")
}

// TestLivezPage reads the checks of an agent that answers probes, through the port of its guard.
func TestLivezPage(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.Start()
	p, _ := startGuarded(t, cp, "--lb-health-port="+portOf(t, must.FreeAddresses(t, 1)[0]))
	want := []string{
		"loop-load-balancers", "loop-token", "loop-session", "loop-renewer", "loop-redirection", "loop-per-port-probes", "envoy", "probe-handler",
	}
	for _, name := range want {
		if code, body := p.get("/livez/" + name); code != http.StatusOK {
			t.Errorf("/livez/%s = %d %s", name, code, body)
		}
	}
	p.signal(syscall.SIGSTOP) // the guard serves the probes' port
	wait.Until(t, "", func() error {
		code, body := p.get("/livez")
		if code == http.StatusServiceUnavailable && strings.Contains(body, "[-]probe-handler failed: ") && strings.HasPrefix(body, "[+]"+want[0]) {
			return nil
		}
		return errors.New(body)
	})
	p.signal(syscall.SIGCONT)
	wait.Until(t, "", func() error {
		_, body := p.get("/livez?verbose")
		for _, name := range want {
			if !strings.Contains(body, "[+]"+name+" ok\n") {
				return errors.New(body)
			}
		}
		return nil
	})
}
