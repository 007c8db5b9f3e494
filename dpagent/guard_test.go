package dpagent_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent/guard/wire"
)

// startGuarded starts sonde-dp with a probe and a virtual port, which makes it a guard, and waits until it answers.
func startGuarded(t testing.TB, cp *controlPlane, args ...string) (p *program, url string) {
	t.Helper()
	app := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "ok") })}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = app.Serve(l) // it says that it was closed
	}()
	t.Cleanup(func() {
		_ = app.Close()
		<-served
	})
	port := l.Addr().(*net.TCPAddr).Port
	table, err := mesh.ProbeTable{
		{ID: "live", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: int32(port)}},
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	virtual := freePort(t)
	env := []string{mesh.EnvProbeTable + "=" + table, mesh.EnvInstanceIP + "=127.0.0.1"}
	p = startProgramIn(t, cp, env, append(args, "--virtual-probes-port="+strconv.Itoa(virtual))...)
	p.waitReady()
	return p, fmt.Sprintf("http://127.0.0.1:%d/%d/", virtual, port)
}

// TestGuardedAgentWithoutAPort has another program listen on a port of the agent: the guard ends with it, so that the last words of its container are why.
func TestGuardedAgentWithoutAPort(t *testing.T) {
	t.Parallel()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = taken.Close() }()
	table, err := mesh.ProbeTable{
		{ID: "live", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: 1}},
	}.Encode()
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, newControlPlane(t, bootstrap(t, ports{})))
	_, port, err := net.SplitHostPort(taken.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"--admin-addr": "127.0.0.1:" + port, "--metrics-addr": "127.0.0.1:" + port, "--lb-health-port": port} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			cmd := exec.CommandContext(ctx, path, "run", "--cp-address="+o.ControlPlane, "--ca-cert-file="+o.CAFile, "--name="+o.Name, "--dataplane-token-file="+o.TokenFile,
				"--admin-addr=127.0.0.1:0", "--envoy-path="+o.EnvoyPath, "--work-dir="+o.WorkDir, "--virtual-probes-port="+strconv.Itoa(freePort(t)), name+"="+value)
			cmd.Env = append(os.Environ(), mesh.EnvProbeTable+"="+table, mesh.EnvInstanceIP+"=127.0.0.1")
			said, err := cmd.CombinedOutput()
			lines := strings.Split(strings.TrimSpace(string(said)), "\n")
			last := lines[len(lines)-1]
			if code := cmd.ProcessState.ExitCode(); code != 1 || !strings.HasPrefix(last, "sonde-dp: "+name+": ") || !strings.HasSuffix(last, "address already in use") {
				t.Errorf("%v (exit code %d), it says\n%s", err, code, said)
			}
		})
	}
}

// worker is the child of the guard.
func (p *program) worker() int {
	p.t.Helper()
	var pid int
	eventually(p.t, 20*time.Second, func() string {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.cmd.Process.Pid))
		if err != nil {
			return err.Error()
		}
		workers := strings.Fields(string(list))
		for _, envoy := range p.envoyPIDs() {
			workers = slices.DeleteFunc(workers, func(pid string) bool { return pid == strconv.Itoa(envoy) })
		}
		if len(workers) != 1 {
			return fmt.Sprint("the guard's children are ", workers)
		}
		if pid, err = strconv.Atoi(workers[0]); err != nil {
			return err.Error()
		}
		return ""
	})
	return pid
}

// waitAdopted waits until agents have so often gone on with the Envoy of one that has died.
func (p *program) waitAdopted(times int) {
	p.t.Helper()
	eventually(p.t, 30*time.Second, func() string {
		if n := strings.Count(p.logs.String(), "envoy adopted"); n != times {
			return fmt.Sprintf("Envoy was adopted %d times", n)
		}
		return ""
	})
}

func (p *program) killWorker() {
	p.t.Helper()
	if err := syscall.Kill(p.worker(), syscall.SIGKILL); err != nil {
		p.t.Fatal(err)
	}
}

// TestAgentDiesWithoutControlPlane has an agent die while the control plane is away: the next one is ready without it, and looks after its
// Envoy as after one that it has started.
func TestAgentDiesWithoutControlPlane(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	p, _ := startGuarded(t, cp)
	before := p.envoyPIDs()
	cp.stop()
	p.killWorker()
	p.waitAdopted(1)
	p.waitReady()
	if now := p.envoyPIDs(); !slices.Equal(now, before) {
		t.Errorf("Envoys = %v, want %v", now, before)
	}
	if err := syscall.Kill(before[0], syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, func() string {
		if n := len(p.envoyPIDs()); n != 2 { // it remembers those that have ended
			return fmt.Sprintf("Envoy was started %d times", n)
		}
		return ""
	})
}

// TestHeldPortsOutliveTheAgent has an agent die while the control plane is away: the next one answers what the control plane had named to it, and asks
// the applications, also if Envoy has died, too.
func TestHeldPortsOutliveTheAgent(t *testing.T) {
	t.Parallel()
	for name, withEnvoy := range map[string]bool{"the agent": false, "the agent and Envoy": true} {
		t.Run(name, func(t *testing.T) {
			cp := newControlPlane(t, bootstrap(t, ports{}))
			cp.set(func() { cp.features = []string{"per-port-probes", "service-probes"} })
			cp.start()
			p, _ := startGuarded(t, cp)
			application := httptest.NewServer(http.NotFoundHandler())
			defer application.Close()
			behind := application.Listener.Addr().String()
			held, web := fmt.Sprintf("127.0.0.2:%d", freePort(t)), fmt.Sprintf("127.0.0.2:%d", freePort(t))
			cp.send <- &agentv1.ControlMessage{Message: &agentv1.ControlMessage_Probes{Probes: &agentv1.Probes{
				Http: web, Paths: []*agentv1.ProbePath{{Path: "/x", Asked: "127.0.0.2:80", Application: behind, ApplicationPath: "/"}},
				Ports: []*agentv1.ProbePort{{Address: held, Application: behind}},
			}}}
			const inbound = "127.0.0.3:80"
			cp.send <- tcpProbe(inbound, application.Listener.Addr().(*net.TCPAddr).Port)
			portIs(t, held, true)
			p.served(web, inbound)

			cp.stop()
			envoys, died := p.envoyPIDs(), p.worker()
			p.killWorker()
			if withEnvoy {
				_ = syscall.Kill(envoys[0], syscall.SIGKILL) // before it is adopted, or after
			}
			eventually(t, 20*time.Second, func() string { return gone(died) })
			portIs(t, held, true)
			p.served(web, inbound)
			if withEnvoy {
				return
			}
			cp.set(func() { cp.features = nil }) // it is too old to name any
			cp.start()
			portIs(t, held, false)
			p.killWorker()
			p.waitAdopted(2)
			p.waitReady()
			portIs(t, held, false)
		})
	}
}

// served waits until the path /x is answered, which an application does not have, and until the application behind an inbound is asked.
func (p *program) served(web, inbound string) {
	p.t.Helper()
	eventually(p.t, 20*time.Second, func() string {
		answer, err := probeClient().Get("http://" + web + "/x")
		if err != nil {
			return err.Error()
		}
		body, err := io.ReadAll(answer.Body)
		_ = answer.Body.Close()
		if answer.StatusCode != http.StatusNotFound || err != nil || !strings.Contains(string(body), "statuscode: 404") {
			return fmt.Sprintf("/x is answered %s %q", answer.Status, body)
		}
		if _, metrics := p.get("/metrics"); !strings.Contains(metrics, fmt.Sprintf("sonde_service_probe_ready{inbound=%q} 1", inbound)) {
			return "the application behind " + inbound + " is not asked"
		}
		return ""
	})
}

// probe asks once, as the kubelet does, and returns what it would hold against the application.
func probe(client *http.Client, url string) error {
	request, err := http.NewRequest(http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	request.Header.Set(mesh.ProbeHeader, "live")
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("answer %s", answer.Status)
	}
	return nil
}

func probeClient() *http.Client {
	return &http.Client{Timeout: 2 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
}

func TestMemoryWithGuard(t *testing.T) {
	t.Run("and probes", func(t *testing.T) { checkGuardedMemory(t, 0) })
	t.Run("and a port for load balancers", func(t *testing.T) { checkGuardedMemory(t, freePort(t)) })
}

func checkGuardedMemory(t *testing.T, lbHealthPort int) {
	t.Helper()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	p, url := startGuarded(t, cp, "--lb-health-port="+strconv.Itoa(lbHealthPort))
	client := probeClient()
	ask := []string{p.admin + "/readyz", p.admin + "/livez", p.admin + "/metrics"}
	if lbHealthPort != 0 {
		at := net.JoinHostPort("127.0.0.1", strconv.Itoa(lbHealthPort))
		ask = append(ask, at+"/healthz", at+"/livez")
	}
	for range 100 { // some minutes of the kubelet's, of a Prometheus' and of a load balancer's
		if err := probe(client, url); err != nil {
			t.Fatal(err)
		}
		for _, question := range ask {
			if err := probe(client, "http://"+question); err != nil {
				t.Fatalf("%s: %v", question, err)
			}
		}
	}
	checkMemory(t, p.cmd.Process.Pid, p.worker())
}

// TestAgentDiesAndComesBack shows that a dead agent is no failing application, and that the next one goes on with its Envoy.
func TestAgentDiesAndComesBack(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	p, url := startGuarded(t, cp)
	var failures atomic.Pointer[string]
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		client := probeClient()
		for {
			select {
			case <-stop:
				return
			default:
			}
			if err := probe(client, url); err != nil {
				text := err.Error()
				failures.Store(&text)
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
	if pids := p.envoyPIDs(); len(pids) != 1 || gone(pids[0]) == "" {
		t.Errorf("Envoys = %v, want one that lives", pids)
	}
	close(stop)
	<-stopped
	if text := failures.Load(); text != nil {
		t.Errorf("the kubelet would blame the application: %s", *text)
	}
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() string { return gone(p.cmd.Process.Pid) })
	for _, pid := range p.envoyPIDs() {
		if why := gone(pid); why != "" {
			t.Error(why)
		}
	}
	if text := p.logs.String(); strings.Contains(text, "is not ready") || !strings.Contains(text, "drain") {
		t.Error("SIGTERM to the guard does not drain")
	}
}

// TestNothingOutlivesTheGuard ends worker and Envoy, which has nothing of the guard in its environment, with the guard.
func TestNothingOutlivesTheGuard(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	p, url := startGuarded(t, cp)
	envoys := p.envoyPIDs()
	for _, pid := range envoys {
		if env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid)); err != nil || strings.Contains(string(env), wire.Env+"=") {
			t.Errorf("the environment of Envoy is %q, %v: want nothing of the guard in it", env, err)
		}
	}
	pids := append(envoys, p.worker())
	if err := p.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = p.cmd.Wait() // it says "killed"
	address, _, _ := strings.Cut(strings.TrimPrefix(url, "http://"), "/")
	l, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatalf("the virtual port is not free at once: %v", err)
	}
	_ = l.Close()
	for _, pid := range pids {
		eventually(t, 5*time.Second, func() string { return gone(pid) })
	}
}
