package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
	"github.com/sonde-mesh/sonde/test/must"
)

func portOf(t testing.TB, address string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(address)
	must.Do(t, err)
	return port
}

// listenAgain listens on an address that was closed just now. A process that another test starts inherits the
// listener until it calls exec.
func listenAgain(ctx context.Context, network, address string) (net.Listener, error) {
	for {
		l, err := new(net.ListenConfig).Listen(ctx, network, address)
		if !errors.Is(err, syscall.EADDRINUSE) {
			return l, err
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// newControlPlane returns a control plane with these features, which serves the given bootstrap.
func newControlPlane(t testing.TB, bootstrap []byte, features ...string) *controlplanetest.ControlPlane {
	t.Helper()
	cp := controlplanetest.New(t, controlplanetest.Options{Listen: listenAgain, Address: must.FreeAddresses(t, 1)[0], Bootstrap: bootstrap})
	cp.Set(func(s *controlplanetest.State) { s.Features = features })
	return cp
}

// program is sonde-dp as a process.
type program struct {
	t     testing.TB
	cmd   *exec.Cmd
	logs  *logtest.Buffer
	admin string
	ended chan struct{} // closed at the end; cmd.ProcessState then has the exit code
}

// command returns the command that runs an agent of a control plane, and its admin address.
func command(t testing.TB, cp *controlplanetest.ControlPlane, args ...string) (cmd *exec.Cmd, admin string) {
	t.Helper()
	admin = must.FreeAddresses(t, 1)[0]
	token := filepath.Join(t.TempDir(), "token")
	must.Do(t, os.WriteFile(token, []byte("good\n"), 0o600))
	return exec.CommandContext(t.Context(), sondeDP, append([]string{
		"run", "--cp-address=" + cp.Address, "--ca-cert-file=" + cp.CAFile, "--name=web-1", "--dataplane-token-file=" + token,
		"--admin-addr=" + admin, "--envoy-path=" + envoyPath, "--work-dir=" + filepath.Join(t.TempDir(), "work"), "--concurrency=1",
	}, args...)...), admin
}

// start starts sonde-dp with more environment variables, and waits until it is ready.
func start(t testing.TB, cp *controlplanetest.ControlPlane, env []string, args ...string) *program {
	t.Helper()
	p := &program{t: t}
	p.cmd, p.admin = command(t, cp, args...)
	p.cmd.Env = append(os.Environ(), env...)
	p.run()
	p.waitReady()
	return p
}

// run starts the process, which the end of the test kills.
func (p *program) run() {
	p.t.Helper()
	p.logs, p.ended = &logtest.Buffer{}, make(chan struct{})
	p.cmd.Stdout, p.cmd.Stderr = p.logs, p.logs
	must.Do(p.t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // the process state has the exit code
		close(p.ended)
	}()
	p.t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if p.t.Failed() {
			p.t.Log(p.logs)
		}
	})
}

// client uses a connection for each request. A request without a response fails with the test.
func client() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: new(net.Dialer).DialContext}}
}

// ask returns status and body of a response, or status 0 without a response.
func ask(t testing.TB, url string) (int, string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	must.Do(t, err)
	answer, err := client().Do(request)
	if err != nil {
		return 0, err.Error()
	}
	body, err := io.ReadAll(answer.Body)
	if err := errors.Join(err, answer.Body.Close()); err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// get requests a path from the admin address.
func (p *program) get(path string) (int, string) {
	p.t.Helper()
	return ask(p.t, "http://"+p.admin+path)
}

func (p *program) waitReady() {
	p.t.Helper()
	wait.Until(p.t, "the agent to be ready", func() error {
		if code, body := p.get("/readyz"); code != http.StatusOK {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
}

// waitLogged waits until the log contains a text.
func (p *program) waitLogged(text string) {
	p.t.Helper()
	wait.For(p.t, fmt.Sprintf("%q in the log", text), func() bool { return strings.Contains(p.logs.String(), text) })
}

// signal sends a signal to the process.
func (p *program) signal(s os.Signal) {
	p.t.Helper()
	must.Do(p.t, p.cmd.Process.Signal(s))
}

var startedLine = regexp.MustCompile(`(?:envoy started.*?"pid":)(\d+)`)

// envoys returns the process IDs of all Envoys that were started, running or not.
func (p *program) envoys() (pids []int) {
	p.t.Helper()
	for _, m := range startedLine.FindAllStringSubmatch(p.logs.String(), -1) {
		pid, err := strconv.Atoi(m[1])
		must.Do(p.t, err)
		pids = append(pids, pid)
	}
	return pids
}

// gone returns an error while a process runs.
func gone(pid int) error {
	state, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err == nil && !strings.Contains(string(state), ") Z ") { // a zombie has ended, and waits for its parent
		return fmt.Errorf("process %d lives", pid)
	}
	return nil
}

func waitGone(t testing.TB, pids ...int) {
	t.Helper()
	for _, pid := range pids {
		wait.Until(t, "", func() error { return gone(pid) })
	}
}

// waitPort waits until a port accepts connections, or refuses them.
func waitPort(t testing.TB, at string, open bool) {
	t.Helper()
	wait.Until(t, "", func() error {
		c, err := new(net.Dialer).DialContext(t.Context(), "tcp", at)
		if err == nil {
			_ = c.Close()
		}
		if (err == nil) != open {
			return fmt.Errorf("connect to %s: %w", at, errors.Join(err, errors.New("want it "+map[bool]string{true: "open", false: "closed"}[open])))
		}
		return nil
	})
}

// listen returns a listener that accepts connections without reading: its backlog is enough for the whole test.
func listen(t testing.TB) net.Listener {
	t.Helper()
	l, err := new(net.ListenConfig).Listen(t.Context(), "tcp", "127.0.0.1:0")
	must.Do(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// serve serves HTTP, and returns the address.
func serve(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	l, server, served := listen(t), &http.Server{Handler: h}, make(chan struct{})
	go func() {
		defer close(served)
		_ = server.Serve(l) // the error says that the server was closed
	}()
	t.Cleanup(func() {
		_ = server.Close()
		<-served
	})
	return l.Addr().String()
}

// Guarded agents

// probeEnv returns the environment of a pod with a liveness probe of a port.
func probeEnv(t testing.TB, port string) []string {
	t.Helper()
	number, err := strconv.ParseInt(port, 10, 32)
	must.Do(t, err)
	table, err := mesh.ProbeTable{
		{ID: "live", Container: "app", Type: mesh.ProbeLiveness, TimeoutSeconds: 1, HTTPGet: &mesh.HTTPGetProbe{Path: "/", Port: int32(number)}},
	}.Encode()
	must.Do(t, err)
	return []string{mesh.EnvProbeTable + "=" + table, mesh.EnvInstanceIP + "=127.0.0.1"}
}

// startGuarded starts sonde-dp with a probe and a virtual port, so that it runs a guard. It returns the URL of the
// probe.
func startGuarded(t testing.TB, cp *controlplanetest.ControlPlane, args ...string) (p *program, url string) {
	t.Helper()
	app := portOf(t, serve(t, func(w http.ResponseWriter, _ *http.Request) { _, _ = fmt.Fprint(w, "ok") }))
	virtual := portOf(t, must.FreeAddresses(t, 1)[0])
	p = start(t, cp, probeEnv(t, app), append(args, "--virtual-probes-port="+virtual)...)
	return p, fmt.Sprintf("http://127.0.0.1:%s/%s/", virtual, app)
}

// worker waits for the guard's child that is not Envoy.
func (p *program) worker() (pid int) {
	p.t.Helper()
	wait.Until(p.t, "", func() error {
		list, err := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", p.cmd.Process.Pid))
		if err != nil {
			return err
		}
		workers := strings.Fields(string(list))
		for _, envoy := range p.envoys() {
			workers = slices.DeleteFunc(workers, func(pid string) bool { return pid == strconv.Itoa(envoy) })
		}
		if len(workers) != 1 {
			return fmt.Errorf("the guard's children are %q", workers)
		}
		pid, err = strconv.Atoi(workers[0])
		return err
	})
	return pid
}

// waitAdopted waits until agents have adopted the Envoy of a dead agent this many times.
func (p *program) waitAdopted(times int) {
	p.t.Helper()
	wait.Until(p.t, "", func() error {
		if n := strings.Count(p.logs.String(), "adopted the envoy of the previous agent"); n != times {
			return fmt.Errorf("Envoy was adopted %d times, want %d", n, times)
		}
		return nil
	})
}

// killWorker kills the worker, and returns its process ID.
func (p *program) killWorker() int {
	p.t.Helper()
	pid := p.worker()
	must.Do(p.t, syscall.Kill(pid, syscall.SIGKILL))
	return pid
}
