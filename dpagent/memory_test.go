package dpagent_test

import (
	"bufio"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/sonde-mesh/sonde/internal/logtest"
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

// memory reads two lines of /proc/<pid>/status, in KiB.
func memory(t testing.TB, pid int) (rssAnon, vmRSS int) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for lines := bufio.NewScanner(f); lines.Scan(); {
		fields := strings.Fields(lines.Text())
		switch fields[0] {
		case "RssAnon:":
			rssAnon, err = strconv.Atoi(fields[1])
		case "VmRSS:":
			vmRSS, err = strconv.Atoi(fields[1])
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return rssAnon, vmRSS
}

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

// Limits of the agent at rest, in KiB: it runs once per pod.
const (
	maxRSSAnon = 6 << 10
	maxVmRSS   = 20 << 10
)

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
	var anon, rss int
	highest := time.Now().Add(5 * time.Second)
	eventually(t, time.Minute, func() string {
		a, r := memory(t, p.cmd.Process.Pid)
		anon, rss = max(anon, a), max(rss, r)
		if time.Now().Before(highest) {
			return "measuring"
		}
		return ""
	})
	t.Logf("sonde-dp with a session: RssAnon %d KiB of %d, VmRSS %d KiB of %d", anon, maxRSSAnon, rss, maxVmRSS)
	if anon > maxRSSAnon || rss > maxVmRSS {
		t.Errorf("RssAnon = %d KiB, want at most %d; VmRSS = %d KiB, want at most %d", anon, maxRSSAnon, rss, maxVmRSS)
	}
}
