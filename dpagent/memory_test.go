package dpagent_test

import (
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/logtest"
	"github.com/sonde-mesh/sonde/internal/memorytest"
)

// build builds sonde-dp once, as it is shipped: as BUILD in the Makefile does.
var build = sync.OnceValues(func() (path string, err error) {
	path = filepath.Join(programs, "sonde-dp")
	cmd := exec.Command("go", "build", "-trimpath", "-tags", "grpcnotrace", "-ldflags", "-s -w", "-o", path, "../cmd/sonde-dp")
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build sonde-dp: %w\n%s", err, out)
	}
	return path, nil
})

// program is sonde-dp as a process.
type program struct {
	*running
	cmd *exec.Cmd
}

func startProgram(t testing.TB, cp *controlPlane, args ...string) *program {
	t.Helper()
	return startProgramIn(t, cp, nil, args...)
}

// startProgramIn is startProgram with more variables in its environment.
func startProgramIn(t testing.TB, cp *controlPlane, env []string, args ...string) *program {
	t.Helper()
	path, err := build()
	if err != nil {
		t.Fatal(err)
	}
	o := options(t, cp)
	admin := freePort(t)
	p := &program{running: &running{t: t, logs: &logtest.Buffer{}, dir: o.WorkDir, admin: fmt.Sprintf("127.0.0.1:%d", admin)}}
	p.cmd = exec.Command(path, append([]string{
		"run", "--cp-address=" + o.ControlPlane, "--ca-cert-file=" + o.CAFile, "--name=" + o.Name,
		"--dataplane-token-file=" + o.TokenFile, "--admin-addr=" + p.admin, "--envoy-path=" + o.EnvoyPath,
		"--work-dir=" + o.WorkDir, "--concurrency=1", "--drain-time=5s",
	}, args...)...)
	p.cmd.Env = append(os.Environ(), env...)
	p.cmd.Stderr = p.logs
	p.cmd.Stdout = p.logs
	if err := p.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.cmd.Process.Signal(syscall.SIGKILL)
		_ = p.cmd.Wait()
		if t.Failed() {
			t.Log(p.logs)
		}
	})
	return p
}

// atRest is what the agent may use at rest: it runs once per pod. The goal is 6 MiB of RssAnon, and what the runtime keeps differs by 150 KiB from one start to the next.
var atRest = memorytest.Memory{RssAnon: 6<<20 + 256<<10, VmRSS: 20 << 20}

// checkMemory fails the test if the processes of an agent use more than that within five seconds.
func checkMemory(t *testing.T, pids ...int) {
	t.Helper()
	var most memorytest.Memory
	end := time.Now().Add(5 * time.Second)
	eventually(t, time.Minute, func() string {
		var now memorytest.Memory
		var each []memorytest.Memory
		for _, pid := range pids {
			m, err := memorytest.Of(pid)
			if err != nil {
				t.Fatal(err)
			}
			each, now = append(each, m), now.And(m)
		}
		if now.Exceeds(most) {
			t.Logf("each process: %v", each)
		}
		most = most.Max(now)
		if time.Now().Before(end) {
			return "measuring"
		}
		return ""
	})
	t.Logf("sonde-dp at rest: %v", most)
	if most.Exceeds(atRest) {
		t.Errorf("sonde-dp at rest: %v, want at most %v", most, atRest)
	}
}

func TestMemoryAtRest(t *testing.T) {
	cp := newControlPlane(t, bootstrap(t, ports{}))
	cp.start()
	p := startProgram(t, cp)
	p.waitReady()
	cp.expect(func(m *agentMessage) bool { return m.GetHello() != nil })
	for range 20 { // what a kubelet and a Prometheus ask in some minutes
		for _, path := range []string{"/readyz", "/livez", "/metrics"} {
			if code, body := p.get(path); code != http.StatusOK {
				t.Fatalf("%s = %d %s", path, code, body)
			}
		}
	}
	checkMemory(t, p.cmd.Process.Pid)
}
