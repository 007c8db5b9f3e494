package dpagent_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	agentv1 "github.com/sonde-mesh/sonde/api/agent/v1"
	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/internal/testing/controlplanetest"
	"github.com/sonde-mesh/sonde/internal/testing/envoytest"
	"github.com/sonde-mesh/sonde/internal/testing/logtest"
	"github.com/sonde-mesh/sonde/internal/testing/virtual"
	"github.com/sonde-mesh/sonde/internal/testing/wait"
)

type agentMessage = agentv1.AgentMessage

// world is the environment of an agent: a control plane and Envoys on a virtual network.
type world struct {
	*controlplanetest.ControlPlane

	t       *testing.T
	network *virtual.Network
	envoys  *envoytest.Launcher
}

// newWorld returns a world whose control plane is not started yet.
func newWorld(t *testing.T, features ...string) *world {
	t.Helper()
	n := virtual.NewNetwork()
	return &world{t: t, network: n, envoys: envoytest.New(n), ControlPlane: newControlPlane(t, n, "10.0.0.1:5678", features...)}
}

// newControlPlane returns a control plane whose agents write its CAs to a file for Envoy.
func newControlPlane(t *testing.T, n *virtual.Network, address string, features ...string) *controlplanetest.ControlPlane {
	t.Helper()
	cp := controlplanetest.New(t, controlplanetest.Options{
		Listen: n.Listen, Address: address, Bootstrap: []byte(`{"node": {}, "secret": "` + mesh.FileServingCA + `"}`),
	})
	cp.Set(func(s *controlplanetest.State) { s.Features = features })
	return cp
}

// options returns the options of an agent of this world.
func (w *world) options() dpagent.Options {
	w.t.Helper()
	token := filepath.Join(w.t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("good\n"), 0o600); err != nil {
		w.t.Fatal(err)
	}
	return dpagent.Options{
		ControlPlane: w.Address, CAFile: w.CAFile, Name: "web-1", Mesh: mesh.DefaultMesh, TokenFile: token, AdminAddress: dpagent.DefaultAdminAddress,
		DrainTime: 10 * time.Second, EnvoyPath: "/usr/bin/envoy", WorkDir: filepath.Join(memoryDir(w.t), "work"), Concurrency: 1, Version: "test",
		Listen: w.envoys.Listen, Dial: w.envoys.Dial, Launcher: w.envoys,
	}
}

// memoryDir returns a directory in memory if the system has one, since an agent flushes each file.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "dpagent-test-") //nolint:usetesting // TempDir is on the disk
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// newAgent returns an agent that logs nothing.
func newAgent(t *testing.T, o dpagent.Options) (*dpagent.Agent, error) {
	t.Helper()
	return dpagent.New(t.Context(), o, slog.New(slog.DiscardHandler))
}

// running is a running agent.
type running struct {
	*world

	agent  *dpagent.Agent
	cancel context.CancelFunc
	logs   *logtest.Buffer
	dir    string
	ended  chan error
}

// run runs an agent until the test ends.
func (w *world) run(o dpagent.Options) *running {
	w.t.Helper()
	r := &running{world: w, logs: &logtest.Buffer{}, dir: o.WorkDir, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(w.t.Context())
	r.cancel = cancel
	var err error
	if r.agent, err = dpagent.New(ctx, o, slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug}))); err != nil {
		w.t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- r.agent.Run(ctx)
	}()
	w.t.Cleanup(func() {
		cancel()
		<-done
		if w.t.Failed() {
			w.t.Log(r.logs)
		}
	})
	synctest.Wait()
	return r
}

// start starts the control plane, and runs an agent with changed options until it has a session and is ready.
func (w *world) start(changes ...func(*dpagent.Options)) *running {
	w.t.Helper()
	w.Start()
	o := w.options()
	for _, change := range changes {
		change(&o)
	}
	r := w.run(o)
	r.waitReady()
	w.ExpectHello()
	return r
}

// get sends a request to a port of the pod, from the pod itself.
func (w *world) get(port int, path string) (int, string) {
	w.t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: w.network.DialFrom("127.0.0.1")}}
	answer, err := client.Get(fmt.Sprintf("http://127.0.0.1:%d%s", port, path))
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(body)
}

// get sends a request to the agent's admin address.
func (r *running) get(path string) (int, string) {
	r.t.Helper()
	return r.world.get(mesh.PortMetrics, path)
}

func (r *running) waitReady() {
	r.t.Helper()
	eventually(r.t, func() string {
		if code, body := r.get("/readyz"); code != http.StatusOK {
			return fmt.Sprint(code, " ", body)
		}
		return ""
	})
}

// eventually waits until check returns "". It checks only ten times a second, since each check opens a connection.
func eventually(t *testing.T, check func() string) {
	t.Helper()
	for ended := wait.Context(t); ; {
		synctest.Wait()
		why := check()
		if why == "" {
			return
		}
		if ended.Err() != nil {
			t.Fatal(why)
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// waitEnd waits for Run to end without an error, and returns how long that took.
func (r *running) waitEnd() time.Duration {
	r.t.Helper()
	began := time.Now()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Fatalf("Run() error = %v, want nil", err)
		}
	case <-wait.Context(r.t).Done():
		r.t.Fatalf("Run() has not returned after %s", time.Since(began))
	}
	return time.Since(began)
}

// end ends the agent at once.
func (r *running) end() {
	r.t.Helper()
	r.cancel()
	r.waitEnd()
}

// stillRuns fails the test if Run has ended.
func (r *running) stillRuns() {
	r.t.Helper()
	synctest.Wait()
	select {
	case err := <-r.ended:
		r.t.Fatalf("Run() has returned %v", err)
	default:
	}
}

// logged waits until a text is in the log.
func (r *running) logged(text string) {
	r.t.Helper()
	eventually(r.t, func() string {
		if strings.Contains(r.logs.String(), text) {
			return ""
		}
		return fmt.Sprintf("no %q in the log", text)
	})
}

func TestAgentJoinsAndIsReady(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newWorld(t)
		r := w.run(w.options())
		r.logged("failed to join, retrying")
		if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "connection refused") {
			t.Errorf("/readyz while the control plane is down = %d %q, want 503 with the reason", code, body)
		}
		if code, _ := r.get("/livez"); code != http.StatusOK {
			t.Errorf("/livez = %d, want 200", code)
		}
		w.Start()
		r.waitReady()
		hello := w.ExpectHello()
		if hello.GetVersion().GetSonde() != "test" || hello.GetVersion().GetEnvoy() != "1.40.0" || hello.GetInUse().GetLeafSerial() == "" {
			t.Errorf("Hello = %v, want versions and InUse", hello)
		}
	})
}
