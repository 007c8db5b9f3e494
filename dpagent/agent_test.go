package dpagent_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/api/mesh"
	"github.com/sonde-mesh/sonde/dpagent"
	"github.com/sonde-mesh/sonde/internal/logtest"
	"github.com/sonde-mesh/sonde/internal/slowtest"
	"github.com/sonde-mesh/sonde/internal/waittest"
)

// envoyPath is the real Envoy.
func envoyPath(t testing.TB) string {
	t.Helper()
	slowtest.Skip(t, "a real Envoy is started")
	path := os.Getenv("ENVOY")
	if path == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			t.Fatal(err)
		}
		path = filepath.Join(cache, "sonde", "envoy-1.40.0", "envoy")
	}
	if _, err := os.Stat(path); err != nil {
		t.Fatalf("no Envoy: set $ENVOY, or get it with the tool in tools/envoy: %v", err)
	}
	return path
}

// eventually polls until check returns "", or fails with what it says.
func eventually(t testing.TB, limit time.Duration, check func() string) {
	t.Helper()
	waittest.Until(t, limit, "", func() error {
		if why := check(); why != "" {
			return errors.New(why)
		}
		return nil
	})
}

// running is an agent in this process.
type running struct {
	t      testing.TB
	agent  *dpagent.Agent
	cancel context.CancelFunc
	logs   *logtest.Buffer
	dir    string
	ended  chan error
	admin  string
}

func options(t testing.TB, cp *controlPlane) dpagent.Options {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("good\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return dpagent.Options{
		ControlPlane: cp.address, CAFile: cp.caFile, Name: "web-1", Mesh: mesh.DefaultMesh, TokenFile: token, AdminAddress: "127.0.0.1:0",
		DrainTime: 10 * time.Second, EnvoyPath: envoyPath(t), WorkDir: filepath.Join(memoryDir(t), "work"), Concurrency: 1,
		Version: "test",
	}
}

// memoryDir returns a directory in memory where the system has such, as the agent waits for its disk no longer than five seconds.
func memoryDir(t testing.TB) string {
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

func newAgent(t testing.TB, o dpagent.Options) (*dpagent.Agent, error) {
	t.Helper()
	return dpagent.New(t.Context(), o, slog.New(slog.DiscardHandler))
}

func startAgent(t testing.TB, o dpagent.Options) *running {
	t.Helper()
	return startAgentOf(t, o, dpagent.New)
}

// startAgentOf starts an agent that another function makes.
func startAgentOf(
	t testing.TB, o dpagent.Options, create func(context.Context, dpagent.Options, *slog.Logger) (*dpagent.Agent, error),
) *running {
	t.Helper()
	r := &running{t: t, logs: &logtest.Buffer{}, dir: o.WorkDir, ended: make(chan error, 1)}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	r.cancel = cancel
	agent, err := create(ctx, o, slog.New(slog.NewTextHandler(r.logs, &slog.HandlerOptions{Level: slog.LevelDebug})))
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	r.agent = agent
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.ended <- agent.Run(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-done
		if t.Failed() {
			t.Log(r.logs)
		}
	})
	address := regexp.MustCompile(`msg="metrics and health" .*address=(\S+)`)
	eventually(t, 5*time.Second, func() string {
		if m := address.FindStringSubmatch(r.logs.String()); m != nil {
			r.admin = m[1]
			return ""
		}
		return "no admin address in the log"
	})
	return r
}

// get asks the agent's admin address.
func (r *running) get(path string) (int, string) {
	r.t.Helper()
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	answer, err := client.Get("http://" + r.admin + path)
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

func (r *running) waitReady() {
	r.t.Helper()
	eventually(r.t, time.Minute, func() string {
		if code, body := r.get("/readyz"); code != http.StatusOK {
			return fmt.Sprint(code, " ", body)
		}
		return ""
	})
}

// waitEnd waits for Run to end without an error.
func (r *running) waitEnd(limit time.Duration) {
	r.t.Helper()
	select {
	case err := <-r.ended:
		if err != nil {
			r.t.Fatalf("Run() error = %v, want nil", err)
		}
	case <-time.After(limit):
		r.t.Fatalf("Run() has not returned within %s", limit)
	}
}

func (r *running) logged(text string) {
	r.t.Helper()
	eventually(r.t, 10*time.Second, func() string {
		if strings.Contains(r.logs.String(), text) {
			return ""
		}
		return fmt.Sprintf("no %q in the log", text)
	})
}

// takenPorts are those that freePort has returned.
var takenPorts sync.Map

// freePort is below those that the kernel gives to connections: none of them takes it before who it is for. No process may start while it listens:
// that one would have the listener too, until it executes its program.
func freePort(t testing.TB) int {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	for range 1000 {
		port := 4000 + rand.IntN(6000)
		if _, taken := takenPorts.LoadOrStore(port, true); taken {
			continue
		}
		if l, err := net.Listen("tcp", ":"+strconv.Itoa(port)); err == nil {
			_ = l.Close() // it was a look whether the port is free
			return port
		}
	}
	t.Fatal("no free port below 10000")
	return 0
}

func TestAgentJoinsAndIsReady(t *testing.T) {
	t.Parallel()
	cp := newControlPlane(t, bootstrap(t, ports{}))
	r := startAgent(t, options(t, cp))
	// The control plane is away at first.
	r.logged("not joined yet")
	if code, body := r.get("/readyz"); code != http.StatusServiceUnavailable || !strings.Contains(body, "connection refused") {
		t.Errorf("/readyz while the control plane is away = %d %q, want 503 that says why", code, body)
	}
	if code, _ := r.get("/livez"); code != http.StatusOK {
		t.Errorf("/livez = %d, want 200", code)
	}
	cp.start()
	r.waitReady()
	hello := cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil }).GetHello()
	if hello.GetVersion().GetSonde() != "test" || hello.GetVersion().GetEnvoy() == "" || hello.GetInUse().GetLeafSerial() == "" {
		t.Errorf("Hello = %v, want versions and what is in use", hello)
	}
	r.agent.Drain()
	r.waitEnd(10 * time.Second)
}
